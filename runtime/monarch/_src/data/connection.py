"""A connection of the data plane once both sides have proven who they are: open, or sealed.

Between processes of one host bytes go as they are. Between hosts each *unit*, which is what one
side sends and the other receives in one go (a request, an answer, the bytes of a piece), goes in
records (`wire.sealed`), sealed with keys of that connection: what is on the wire can be neither
read nor changed, said again or left out without the connection's end.

Runs in: any process, on threads that may block. Owns: the socket. One thread at a time sends, and
one receives. Memory for records is lent to a transfer, so that a connection at rest has none.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from monarch._src.wire.sealed import (
    HEAD,
    RECORD,
    TAG,
    Sealer,
    SealError,
    Unsealer,
    give_back,
    head_at,
    room_for_one,
)

CHUNK = 1 << 21


class Keys(msgspec.Struct, frozen=True):
    """Of one connection, for either direction; used for no other."""

    sends: bytes
    receives: bytes


class Connection:
    """An open one."""

    __slots__ = ("_socket",)

    def __init__(self, made: socket.socket) -> None:
        self._socket = made

    @property
    def peer(self) -> str:
        """The address of the other end, for logs."""
        return "{}:{}".format(*self._socket.getpeername()[:2])

    def limit(self, seconds: float | None) -> None:
        """How long the next calls may take, each; None: for ever."""
        self._socket.settimeout(seconds)

    def until(self, deadline: float) -> None:
        """Let the next call take until then. TimeoutError if that is past."""
        until(self._socket, deadline)

    def send(self, unit: memoryview | bytes, deadline: float | None = None) -> None:
        """Send all of it; each part of a large one by the deadline, if there is one."""
        memory = memoryview(unit)
        for at in range(0, len(memory), CHUNK):
            if deadline is not None:
                until(self._socket, deadline)
            self._socket.sendall(memory[at : at + CHUNK])

    def receive(self, memory: memoryview, deadline: float = float("inf")) -> bool:
        """Receive until the memory is full; False if the other side has hung up."""
        return received(self._socket, memory, deadline)

    def again(self) -> Connection:
        """The same connection as another object; this one may be closed then, and used no more."""
        return Connection(self._socket.dup())

    def hang_up(self) -> None:
        """End what blocks in it, at both ends."""
        hang_up(self._socket)

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()


class SealedConnection(Connection):
    """One that only its two ends can read or write."""

    __slots__ = ("_sealer", "_unsealer")

    def __init__(self, made: socket.socket, sealer: Sealer, unsealer: Unsealer) -> None:
        super().__init__(made)
        self._sealer = sealer
        self._unsealer = unsealer

    def send(self, unit: memoryview | bytes, deadline: float | None = None) -> None:
        memory = memoryview(unit)
        with _room(len(memory)) as room:
            for at in range(0, len(memory), RECORD):
                if deadline is not None:
                    until(self._socket, deadline)
                self._socket.sendall(self._sealer.seal_into(memory[at : at + RECORD], room))

    def receive(self, memory: memoryview, deadline: float = float("inf")) -> bool:
        at, size = 0, len(memory)
        with _room(size) as room:
            have = 0
            while at < size:
                # No more than the unit can have: what follows is another's to receive.
                most = HEAD + min(RECORD, size - at) + TAG
                while have < most:
                    if have >= HEAD and have >= (most := self._record(room, size - at)):
                        break
                    got = self._socket.recv_into(room[have:most])
                    if not got:
                        return False
                    have += got
                    if time.monotonic() > deadline:  # a trickle is too late as well
                        raise TimeoutError
                end = self._record(room, size - at)
                into = memory[at : at + end - HEAD - TAG]
                try:
                    self._unsealer.unseal_into(room[:end], into)
                except SealError as error:
                    raise ConnectionError(str(error)) from None
                at += len(into)
                have -= end
                if have:  # of the next record, if this was a short one
                    room[:have] = room[end : end + have]
        return True

    @staticmethod
    def _record(room: memoryview, left: int) -> int:
        """How long the record is that begins there; an error if it is not of this unit."""
        try:
            size, other = head_at(room, 0)
        except SealError as error:
            raise ConnectionError(str(error)) from None
        if size > left or other:
            raise ConnectionError("a record that does not belong there")
        return HEAD + size + TAG

    def again(self) -> Connection:
        return SealedConnection(self._socket.dup(), self._sealer, self._unsealer)


def proven(made: socket.socket, keys: Keys | None) -> Connection:
    """The connection of that socket: sealed with those keys, or open."""
    if keys is None:
        return Connection(made)
    return SealedConnection(made, Sealer(keys.sends), Unsealer(keys.receives))


@contextmanager
def _room(size: int) -> Generator[memoryview]:
    """Memory for one record of a unit of that size."""
    if size < RECORD:
        yield memoryview(bytearray(HEAD + size + TAG))
        return
    room = room_for_one()
    try:
        yield memoryview(room)
    finally:
        give_back(room)


# --- sockets that nobody has proven anything on yet ----------------------------------------------


def until(made: socket.socket, deadline: float) -> None:
    """Let the next call of that socket take until then. TimeoutError if that is past."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    made.settimeout(left)


def received(made: socket.socket, memory: memoryview, deadline: float = float("inf")) -> bool:
    """Receive until the memory is full; False if the other side has hung up."""
    at, size = 0, len(memory)
    while at < size:
        got = made.recv_into(memory[at : at + CHUNK])
        if not got:
            return False
        at += got
        if at < size and time.monotonic() > deadline:  # a trickle is too late as well
            raise TimeoutError
    return True


def hang_up(made: socket.socket) -> None:
    """End what blocks in a socket."""
    try:
        made.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side was first
