"""A connection of the data plane once both sides have proven who they are: open, or sealed.

Between processes of one host bytes go as they are. Between hosts they go in records that are sealed
with keys of that connection (`wire.encryption`): what is on the wire can be neither read nor
changed, said again or left out without the connection's end. Either way what is sent in one go may
be received in several, and the other way round.

Runs in: any process, on threads that may block. Owns: the socket. One thread at a time sends, and
one receives. Memory for records is lent to a transfer, so that a connection at rest has none.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from monarch._src.wire.encryption import (
    HEAD,
    RECORD,
    TAG,
    Sealer,
    SealError,
    Unsealer,
    give_back,
    room_for_one,
    sealed_size,
)

CHUNK = 1 << 21
_NOTHING = memoryview(b"")


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

    @property
    def host(self) -> str:
        """The address of the other end's host, as it is dialled."""
        return str(self._socket.getpeername()[0])

    def limit(self, seconds: float | None) -> None:
        """How long the next calls may take, each; None: for ever."""
        self._socket.settimeout(seconds)

    def until(self, deadline: float) -> None:
        """Let the next call take until then. TimeoutError if that is past."""
        until(self._socket, deadline)

    def send(self, data: memoryview | bytes, deadline: float | None = None) -> None:
        """Send all of it; each part of much by the deadline, if there is one."""
        memory = memoryview(data)
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

    __slots__ = ("_opened", "_sealer", "_unsealer")

    def __init__(self, made: socket.socket, sealer: Sealer, unsealer: Unsealer) -> None:
        super().__init__(made)
        self._sealer = sealer
        self._unsealer = unsealer
        self._opened = _NOTHING  # what has come and was not asked for yet

    def send(self, data: memoryview | bytes, deadline: float | None = None) -> None:
        memory = memoryview(data)
        with _room(len(memory)) as room:
            for at in range(0, len(memory), RECORD):
                if deadline is not None:
                    until(self._socket, deadline)
                self._socket.sendall(self._sealer.seal_into(memory[at : at + RECORD], room))

    def receive(self, memory: memoryview, deadline: float = float("inf")) -> bool:
        at, size = 0, len(memory)
        if self._opened:
            at = min(size, len(self._opened))
            memory[:at] = self._opened[:at]
            # A view of nothing would keep the record that it is of.
            self._opened = self._opened[at:] if at < len(self._opened) else _NOTHING
        if at == size:
            return True
        with _room(size - at) as room:
            have = 0
            while at < size:
                # No more than what is asked for can have: what follows it is not to be waited for.
                most = HEAD + min(RECORD, size - at) + TAG
                while have < (end := self._end(room, have)):
                    if end > most:  # it reaches beyond what is asked for
                        most, room = end, _at_least(room, have, end)
                    got = self._socket.recv_into(room[have:most])
                    if not got:
                        return False
                    have += got
                    if time.monotonic() > deadline:  # a trickle is too late as well
                        raise TimeoutError
                at += self._open(room[:end], memory[at:])
                have -= end
                if have:  # of the next record, if this was a short one
                    room[:have] = room[end : end + have]
        return True

    def _open(self, record: memoryview, into: memoryview) -> int:
        """Put what is in it there, and keep what there is no room for; how much was put there."""
        size = len(record) - HEAD - TAG
        try:
            if size <= len(into):
                self._unsealer.unseal_into(record, into[:size])
                return size
            opened = memoryview(self._unsealer.unseal(record))
        except SealError as error:
            raise ConnectionError(str(error)) from None
        into[:], self._opened = opened[: len(into)], opened[len(into) :]
        return len(into)

    @staticmethod
    def _end(room: memoryview, have: int) -> int:
        """Where the record ends that begins there, or its head if that has not come yet."""
        if have < HEAD:
            return HEAD
        try:
            return HEAD + sealed_size(room) + TAG
        except SealError as error:
            raise ConnectionError(str(error)) from None

    def again(self) -> Connection:
        made = SealedConnection(self._socket.dup(), self._sealer, self._unsealer)
        made._opened = self._opened
        return made


def proven(made: socket.socket, keys: Keys | None) -> Connection:
    """The connection of that socket: sealed with those keys, or open."""
    if keys is None:
        return Connection(made)
    return SealedConnection(made, Sealer(keys.sends), Unsealer(keys.receives))


@contextmanager
def _room(size: int) -> Generator[memoryview]:
    """Memory for the first record of so many bytes."""
    if size < RECORD:
        yield memoryview(bytearray(HEAD + size + TAG))
        return
    room = room_for_one()
    try:
        yield memoryview(room)
    finally:
        give_back(room)


def _at_least(room: memoryview, have: int, size: int) -> memoryview:
    """That room, or a larger one with what it has: so many bytes."""
    if size <= len(room):
        return room
    made = memoryview(bytearray(size))
    made[:have] = room[:have]
    return made


# --- sockets that nobody has proven anything on yet -----------------------------------------------


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
