"""One sealed TCP connection between two nodes of different hosts: what waits to leave, what comes.

Runs in: any process that has links, under their lock. Owns: a socket.
Messages are a stream as of `wire.stream`, in records as of `wire.sealed`; but most are small and
have two frames, and these are a record of the other kind each:

    u16 n, big endian | first frame, n bytes | second frame

Small ones are sealed when they are sent; what is large, or finds no room, waits as it is and is
sealed when there is room for it, so that a slow peer costs no second copy of it.
Invariants: messages leave whole and in the order of `send`.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from monarch._src.wire.frames import Buffer
from monarch._src.wire.sealed import HEAD, RECORD, ROOM, TAG, Sealer, SealError, Unsealer, head_at
from monarch._src.wire.stream import Place, Splitter, pack

_SHORT = 1 << 14  # bytes of pieces that are sealed with others
_QUIETLY = int(getattr(socket, "MSG_NOSIGNAL", 0))  # elsewhere Python itself ignores SIGPIPE


def new_socket(family: int, silence_s: float) -> socket.socket:
    """A socket for a trunk, which ends when it was not answered for so long; nothing blocks."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        prepare(made, silence_s)
    except BaseException:
        made.close()
        raise
    return made


def prepare(made: socket.socket, silence_s: float) -> None:
    """Make one that was accepted like one of `new_socket`."""
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        silent_ms = max(100, int(1000 * silence_s))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_ms)


class Trunk:
    """See the module's text. `fd` is -1 once it is closed.

    `reads`: what comes is for us by now. `waits`: something is to be flushed when there is room.
    `mask`: what is looked for at `fd`, as of `polling`.
    """

    __slots__ = (
        "_have", "_outbox", "_rest", "_room", "_sealer", "_socket", "_splitter", "_unsealer",
        "fd", "mask", "reads", "waits",
    )  # fmt: skip

    def __init__(
        self, made: socket.socket, sealer: Sealer, unsealer: Unsealer, place: Place
    ) -> None:
        """`made` is connected, and does not block. `place`: as of `Splitter`."""
        self._socket = made
        self.fd = made.fileno()
        self.mask = 0
        self.reads = self.waits = False
        self._sealer = sealer
        self._unsealer = unsealer
        self._splitter = Splitter(place=place)
        self._outbox: deque[Buffer] = deque()  # not sealed yet
        self._rest: Buffer = b""  # of a record that was begun
        # A page of it costs memory when it is first used: of most trunks that is one.
        self._room = memoryview(mmap.mmap(-1, ROOM, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._have = 0

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Write a message, or have it wait. False if the connection has ended."""
        if self.waits:
            self._outbox.extend(pack(frames))
            return self.fd >= 0
        if len(frames) == 2:
            first, second = frames
            size = len(first)
            if size + len(second) <= _SHORT:
                data = b"".join((size.to_bytes(2, "big"), first, second))
                return self._write(self._sealer.seal(data, other=True))
        self._outbox.extend(pack(frames))
        return self.flush()

    def flush(self) -> bool:
        """Write what waits, as far as there is room. False if the connection has ended."""
        if self._rest and not self._write(self._rest):
            return False
        while self._outbox and not self._rest:
            if not self._write(self._next_record()):
                return False
        self.waits = bool(self._rest or self._outbox)
        if not self.waits:
            self._sealer.rest()
        return self.fd >= 0

    def _next_record(self) -> Buffer:
        """Seal the next bytes: of one large piece, or of several small ones together."""
        outbox = self._outbox
        first = outbox.popleft()
        if len(first) > _SHORT:
            if len(first) > RECORD:
                view = memoryview(first)
                outbox.appendleft(view[RECORD:])
                first = view[:RECORD]
            return self._sealer.seal_large(first)
        together, size = [first], len(first)
        while outbox and len(outbox[0]) <= _SHORT and size + len(outbox[0]) <= RECORD:
            size += len(outbox[0])
            together.append(outbox.popleft())
        return self._sealer.seal(b"".join(together))

    def _write(self, sealed: Buffer) -> bool:
        try:
            sent = self._socket.send(sealed, _QUIETLY)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent == len(sealed):
            self._rest = b""
        else:  # it may lie where the next record is sealed, which is not before this has left
            self._rest, self.waits = memoryview(sealed)[sent:], True
        return True

    def receive(self) -> tuple[list[list[Any]], bool] | None:
        """The messages that are complete with what came, and whether more may be there now.

        None: the connection has ended.

        Raises:
            SealError, StreamError: the peer speaks something else; nothing more can be had.
        """
        try:
            count = self._socket.recv_into(self._room[self._have :])
        except BlockingIOError:
            return [], False
        except OSError:
            return None
        if not count:
            return None
        room, end = self._room, self._have + count
        found: list[list[Any]] = []
        at = 0
        while end - at > HEAD:
            size, is_pair = head_at(room, at)
            stop = at + HEAD + size + TAG
            if stop > end:
                break
            if is_pair:
                found.append(self._pair(room[at:stop]))
            else:
                self._take(room[at:stop], size, found)
            at = stop
        if at:
            room[: end - at] = room[at:end]
        self._have = end - at
        return found, end == ROOM

    def _pair(self, record: memoryview) -> list[Any]:
        data = self._unsealer.unseal(record)
        end = 2 + int.from_bytes(data[:2], "big")
        if end > len(data) or self._splitter.into is not None:
            raise SealError("a pair of frames that is none")
        return [data[2:end], data[end:]]

    def _take(self, record: memoryview, size: int, found: list[list[Any]]) -> None:
        splitter = self._splitter
        into = splitter.into
        if into is None:
            found += (message[1:] for message in splitter.feed(self._unsealer.unseal(record)))
            return
        if size <= len(into):
            self._unsealer.unseal_into(record, into[:size])
            if (message := splitter.got(size)) is not None:
                found.append(message[1:])
            return
        data = memoryview(self._unsealer.unseal(record))
        while (into := splitter.into) is not None and data:
            there = min(len(into), len(data))
            into[:there] = data[:there]
            data = data[there:]
            if (message := splitter.got(there)) is not None:
                found.append(message[1:])
        if data:
            found += (message[1:] for message in splitter.feed(bytes(data)))

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes; what it sends can be received still."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        if self.fd >= 0:
            self._outbox.clear()
            self._socket.close()
            self.fd = -1


_knock = struct.Struct(">Q")
_KNOCK = b"trunk"
KNOCK_BYTES = _knock.size + HEAD + len(_KNOCK) + TAG


def knock(number: int, sealer: Sealer) -> bytes:
    """The first bytes of who takes an offer: its number, and a record that shows the key."""
    return _knock.pack(number) + sealer.seal(_KNOCK)


def number_of(knocked: Buffer) -> int:
    """Which offer these KNOCK_BYTES say to take."""
    return _knock.unpack_from(knocked)[0]


def check_knock(knocked: Buffer, unsealer: Unsealer) -> None:
    """See that they come from who was made that offer.

    Raises:
        SealError: they do not.
    """
    head_at(knocked, _knock.size)
    unsealer.unseal(memoryview(knocked)[_knock.size :])
