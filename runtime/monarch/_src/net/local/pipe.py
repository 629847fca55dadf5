"""One connection to another process of this host: its socket and its outbox.

Runs in: any process. Any thread sends; only the receiving thread receives, flushes and closes.
Invariants: messages leave whole and in the order of `send`. The sending thread writes the bytes
that the system accepts at once; the rest waits in the outbox until the socket has room. While the
outbox has content, later messages join it, and one system call then writes many of them.
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

GATHERED = 1 << 16  # bytes that join the outbox before the pipe tries to write again
PIECES = 256  # written by one system call
BUFFERED = 1 << 20  # requested size of the socket's send buffer in bytes; the system may allow less
_HEADS = 1 << 12  # bytes of a usual message beside its payload
_QUIETLY = int(getattr(socket, "MSG_NOSIGNAL", 0))  # elsewhere Python itself ignores SIGPIPE
_NOT_THERE = {errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN}
_NO_ROOM = {errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM}


def new_socket() -> socket.socket:
    """A non-blocking socket for a pipe or a listener."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    return made


def room_to_read() -> memoryview:
    """Memory for one read, large enough for any message that carries its payload.

    It is reused, because an allocation for each read would go to the system and back.
    """
    size = SEGMENT_FROM + _HEADS
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def user_of(made: socket.socket) -> int | None:
    """The user id of the process at the other end; None if the system does not provide it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    ids = struct.Struct("3i")  # pid, uid, gid
    return ids.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ids.size))[1]


class Pipe:
    """One connection to another process of this host.

    `route`: the local name of the peer, empty until it has sent its name. `gone`: no message can be
    sent any more. `dropped`: received messages are discarded as well.
    """

    __slots__ = (
        "_gathered", "_lock", "_on_full", "_outbox", "_poll", "_send", "_socket",
        "address", "dialing", "dropped", "fd", "gone", "route", "splitter", "watched",
    )  # fmt: skip

    def __init__(self, made: socket.socket, poll: Poll, on_full: Callable[[], None]) -> None:
        """`on_full`: called when the outbox waits for room, so that a thread flushes it."""
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFERED)
        self._socket = made
        self._send: Any = made.send
        self._poll = poll
        self._on_full = on_full
        self._lock = threading.Lock()
        self._outbox: deque[Buffer] = deque()
        self._gathered = 0  # bytes that joined the outbox since the last write
        self.fd = made.fileno()
        self.route = b""
        self.address = ""  # of the peer, if this end has connected
        self.splitter = Splitter()
        self.dialing = False
        self.watched = False
        self.gone = False
        self.dropped = False

    def set_route(self, route: bytes) -> None:
        """Set the local name of the peer."""
        self.route = self.splitter.mark = route

    # --- any thread -------------------------------------------------------------------------------

    def send(self, packed: Sequence[Buffer]) -> bool:
        """Write or queue packed messages; False if the peer is gone. Never blocks."""
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
        """Connect; False if no process listens there yet. `first` leaves before queued messages.

        Raises:
            OSError: the address can never be reached.
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
        """Watch the socket of a connection that the peer has opened."""
        with self._lock:
            self._watch()

    def drop(self) -> None:
        """Discard the outbox and shut down; the receiving thread finds the end and closes it."""
        with self._lock:
            self.gone = self.dropped = True
            self._outbox.clear()
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                if error.errno not in (errno.ENOTCONN, errno.EBADF):
                    raise

    def waits(self) -> bool:
        """Whether the outbox has content that a connected peer may still read."""
        return bool(self._outbox) and not self.dialing

    # --- the receiving thread ---------------------------------------------------------------------

    def flush(self) -> None:
        """Write the outbox as far as there is room."""
        with self._lock:
            self._write()
            if not self._outbox and self.fd >= 0:
                self._poll.modify(self.fd, READ)

    def receive(self, room: memoryview) -> list[list[Any]] | None:
        """Read once, and return the messages that are complete; None at the end of the stream.

        Args:
            room: see `room_to_read`.

        Raises:
            StreamError: the peer breaks the protocol.
        """
        splitter = self.splitter
        into = splitter.into
        try:
            count = self._socket.recv_into(room if into is None else into)
        except BlockingIOError:
            return []
        except OSError:  # the peer has ended without reading all messages
            return None
        if not count:
            return None
        if into is None:
            return splitter.feed(room[:count])
        message = splitter.got(count)
        return [] if message is None else [message]

    def close(self) -> None:
        """Close the socket. Idempotent."""
        with self._lock:
            self.gone = True
            self._outbox.clear()
            if self.fd >= 0:
                if self.watched:  # a fork of this process may keep the socket open
                    self._poll.unregister(self.fd)
                self._socket.close()
                self.fd = -1

    def forked(self) -> None:
        """In a fork: close its copy of the descriptor; the pipe stays the parent's."""
        self.gone = True
        self._socket.close()
        self.fd = -1

    # --- under the lock ---------------------------------------------------------------------------

    def _watch(self) -> None:
        self.watched = True
        self._poll.register(self.fd, READ | WRITE if self._outbox else READ)

    def _failed(self, error: OSError) -> int:
        """Handle a failed write: the socket is full, or the peer is gone."""
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
