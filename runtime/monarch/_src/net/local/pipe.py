"""One connection to another process of this host: what waits to leave, and what comes.

Runs in: any process. Any thread sends; only the holder of the baton receives, flushes and closes.
Invariants: messages leave whole and in the order of `send`. What the system takes at once is
written by the thread that sends; the rest waits, and is written when there is room. Once anything
waits, all that follows does: then many messages leave by one system call.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from monarch._src.net.local.poll import READ, WRITE, Poll
from monarch._src.wire.frames import Buffer
from monarch._src.wire.segment_refs import SEGMENT_FROM
from monarch._src.wire.stream import Splitter

GATHERED = 1 << 16  # bytes that come to wait until the pipe looks for room again
PIECES = 256  # that are written by one call
BUFFERED = 1 << 20  # bytes that the system is asked to hold for the peer; it may allow less
_HEADS = 1 << 12  # bytes of a message beside its payload, as a rule
_QUIETLY = int(getattr(socket, "MSG_NOSIGNAL", 0))  # elsewhere Python itself ignores SIGPIPE
_NOT_THERE = {errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN}
_NO_ROOM = {errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM}


def new_socket() -> socket.socket:
    """A socket for a pipe or a listener; nothing that is done with it blocks."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    return made


def room_to_read() -> memoryview:
    """Memory for the bytes of one read, with room for any message that carries its payload.

    A read that made its own would take it from the system each time, and give it back.
    """
    size = SEGMENT_FROM + _HEADS
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def user_of(made: socket.socket) -> int | None:
    """Whose process is at the other end; None if this system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    said = struct.Struct("3i")  # pid, uid, gid
    return said.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, said.size))[1]


class Pipe:
    """See the module's text.

    `route`: what the peer is called here, empty until it has said its name. `gone`: nothing can be
    sent any more; `dropped`: nor is anybody interested in what comes.
    """

    __slots__ = (
        "_gathered", "_lock", "_on_full", "_outbox", "_poll", "_send", "_socket",
        "address", "dialing", "dropped", "fd", "gone", "route", "splitter", "watched",
    )  # fmt: skip

    def __init__(self, made: socket.socket, poll: Poll, on_full: Callable[[], None]) -> None:
        """`on_full`: something waits for room, so somebody should wait for that."""
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFERED)
        self._socket = made
        self._send: Any = made.send
        self._poll = poll
        self._on_full = on_full
        self._lock = threading.Lock()
        self._outbox: deque[Buffer] = deque()
        self._gathered = 0  # bytes that came to wait since room was looked for
        self.fd = made.fileno()
        self.route = b""
        self.address = ""  # if we have connected to it
        self.splitter = Splitter()
        self.dialing = False
        self.watched = False
        self.gone = False
        self.dropped = False

    def known_as(self, route: bytes) -> None:
        """Who is at the other end."""
        self.route = self.splitter.mark = route

    # --- any thread -------------------------------------------------------------------------------

    def send(self, packed: Sequence[Buffer]) -> bool:
        """Write a message, or several, or have it wait; False if the peer is gone. Never blocks."""
        with self._lock:
            if self.gone:
                return False
            outbox = self._outbox
            if outbox:
                outbox.extend(packed)
                self._gathered += len(packed[0])
                if self._gathered >= GATHERED or len(packed) > 1:
                    self._write()
                return not self.gone
            if len(packed) == 1:
                data = packed[0]
                try:
                    sent = self._send(data, _QUIETLY)
                except OSError as error:
                    sent = self._failed(error)
                if sent == len(data):
                    return True
                if self.gone:
                    return False
                outbox.append(memoryview(data)[sent:])
            else:
                outbox.extend(packed)
                self._write()
                if not outbox:
                    return not self.gone
            self._poll.modify(self.fd, READ | WRITE)
            self._on_full()
            return True

    def dial(self, first: Sequence[Buffer] = ()) -> bool:
        """Connect; False if nobody listens there yet. `first` goes before all that was sent.

        Raises:
            OSError: nobody ever can.
        """
        with self._lock:
            if self.gone:
                return True
            self._outbox.extend(first)
            failed = self._socket.connect_ex(self.address)
            self.dialing = failed in _NOT_THERE
            if self.dialing:
                return False
            if failed:
                self.gone = True
                raise OSError(failed, os.strerror(failed), self.address)
            self._write()
            self._watch()
            if self._outbox:
                self._on_full()
            return True

    def accepted(self) -> None:
        """It is one that somebody else has opened: have what comes found."""
        with self._lock:
            self._watch()

    def drop(self) -> None:
        """Send no more, and forget what waits; who receives finds its end, and closes it."""
        with self._lock:
            self.gone = self.dropped = True
            self._outbox.clear()
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                if error.errno not in (errno.ENOTCONN, errno.EBADF):
                    raise

    def waits(self) -> bool:
        """Whether anything waits to leave, and may yet."""
        return bool(self._outbox) and not self.dialing

    # --- the holder of the baton ------------------------------------------------------------------

    def flush(self) -> None:
        """There is room: write what waits."""
        with self._lock:
            self._write()
            if not self._outbox and self.fd >= 0:
                self._poll.modify(self.fd, READ)

    def receive(self, room: memoryview) -> list[list[Any]] | None:
        """The messages that are complete with what came by now; None if that was the end.

        Args:
            room: see `room_to_read`.

        Raises:
            StreamError: the peer speaks something else.
        """
        splitter = self.splitter
        into = splitter.into
        try:
            count = self._socket.recv_into(room if into is None else into)
        except BlockingIOError:
            return []
        except OSError:  # it has ended without reading all that it was sent
            return None
        if not count:
            return None
        if into is None:
            return splitter.feed(room[:count])
        message = splitter.got(count)
        return [] if message is None else [message]

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        with self._lock:
            self.gone = True
            self._outbox.clear()
            if self.fd >= 0:
                if self.watched:  # a fork of ours may keep the socket open
                    self._poll.unregister(self.fd)
                self._socket.close()
                self.fd = -1

    def forked(self) -> None:
        """This is a fork: give its copy of the descriptor back, the pipe is its parent's."""
        self.gone = True
        self._socket.close()
        self.fd = -1

    # --- under the lock ---------------------------------------------------------------------------

    def _watch(self) -> None:
        self.watched = True
        self._poll.register(self.fd, READ | WRITE if self._outbox else READ)

    def _failed(self, error: OSError) -> int:
        """Nothing could be written: for now, or because there is nobody any more."""
        if error.errno not in _NO_ROOM:
            self.gone = True
            self._outbox.clear()
        return 0

    def _write(self) -> None:
        outbox = self._outbox
        self._gathered = 0
        while outbox and not self.dialing:
            pieces = list(islice(outbox, PIECES))
            try:
                sent = self._socket.sendmsg(pieces, (), _QUIETLY)
            except OSError as error:
                self._failed(error)
                return
            for piece in pieces:
                if sent < len(piece):
                    outbox[0] = memoryview(piece)[sent:]
                    return
                sent -= len(piece)
                outbox.popleft()
