"""A connection of the data plane after both sides have been authenticated: plain or encrypted.

Between processes of one host, bytes are sent as they are. Between hosts they are sent in records
that are encrypted with keys of that connection (`wire.encryption`): an attacker on the network can
neither read nor change them, and replayed or missing records end the connection. In both cases the
bytes of one `send` may arrive in several `receive` calls, and the other way round.

Runs in: any process, on threads that may block. Owns: the socket. One thread at a time may send,
and one receive. Memory for records is borrowed for each transfer: an idle connection holds none.
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


class StreamKeys(msgspec.Struct, frozen=True):
    """The keys of one connection, one for each direction; never used for another."""

    sends: bytes
    receives: bytes


class Connection:
    """A plain connection."""

    __slots__ = ("_socket",)

    def __init__(self, made: socket.socket) -> None:
        self._socket = made

    @property
    def peer(self) -> str:
        """The address of the other end, for logs."""
        return "{}:{}".format(*self._socket.getpeername()[:2])

    @property
    def host(self) -> str:
        """The address of the other end's host, in the form in which it is dialled."""
        return str(self._socket.getpeername()[0])

    def limit(self, seconds: float | None) -> None:
        """How long each of the next calls may take; None: for ever."""
        self._socket.settimeout(seconds)

    def until(self, deadline: float) -> None:
        """Let the next call take until that time. TimeoutError if it is past."""
        until(self._socket, deadline)

    def send(self, data: memoryview | bytes, deadline: float | None = None) -> None:
        """Send all of it; each chunk has to be sent by the deadline, if there is one."""
        memory = memoryview(data)
        for at in range(0, len(memory), CHUNK):
            if deadline is not None:
                until(self._socket, deadline)
            self._socket.sendall(memory[at : at + CHUNK])

    def receive(self, memory: memoryview, deadline: float = float("inf")) -> bool:
        """Receive until the memory is full; False if the other side has closed the connection."""
        return received(self._socket, memory, deadline)

    def again(self) -> Connection:
        """The same connection as another object; after that this one may only be closed."""
        return Connection(self._socket.dup())

    def hang_up(self) -> None:
        """Shut the connection down: blocked calls at both ends return."""
        hang_up(self._socket)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()


class SealedConnection(Connection):
    """An encrypted connection, which only its two ends can read."""

    __slots__ = ("_opened", "_sealer", "_unsealer")

    def __init__(self, made: socket.socket, sealer: Sealer, unsealer: Unsealer) -> None:
        super().__init__(made)
        self._sealer = sealer
        self._unsealer = unsealer
        self._opened = _NOTHING  # decrypted bytes that were not asked for yet

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
            # An empty view would keep the whole record alive.
            self._opened = self._opened[at:] if at < len(self._opened) else _NOTHING
        if at == size:
            return True
        with _room(size - at) as room:
            have = 0
            while at < size:
                # No more than the requested bytes can need: bytes after them may never come.
                most = HEAD + min(RECORD, size - at) + TAG
                while have < (end := self._end(room, have)):
                    if end > most:  # the record contains more than the requested bytes
                        most, room = end, _at_least(room, have, end)
                    got = self._socket.recv_into(room[have:most])
                    if not got:
                        return False
                    have += got
                    if time.monotonic() > deadline:  # bytes that trickle in must not extend it
                        raise TimeoutError
                at += self._open(room[:end], memory[at:])
                have -= end
                if have:  # a short record came, and the beginning of the next one
                    room[:have] = room[end : end + have]
        return True

    def _open(self, record: memoryview, into: memoryview) -> int:
        """Decrypt a record into the memory; keep the rest of it. Returns the bytes written."""
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
        """The end of the first record in `room`; the end of its head if that is incomplete."""
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


def proven(made: socket.socket, keys: StreamKeys | None) -> Connection:
    """The connection of that socket: encrypted with those keys, or plain."""
    if keys is None:
        return Connection(made)
    return SealedConnection(made, Sealer(keys.sends), Unsealer(keys.receives))


@contextmanager
def _room(size: int) -> Generator[memoryview]:
    """Memory for the first record of `size` bytes."""
    if size < RECORD:
        yield memoryview(bytearray(HEAD + size + TAG))
        return
    room = room_for_one()
    try:
        yield memoryview(room)
    finally:
        give_back(room)


def _at_least(room: memoryview, have: int, size: int) -> memoryview:
    """The same memory, or a larger copy of it with `size` bytes."""
    if size <= len(room):
        return room
    made = memoryview(bytearray(size))
    made[:have] = room[:have]
    return made


# --- sockets before authentication ----------------------------------------------------------------


def until(made: socket.socket, deadline: float) -> None:
    """Let the next call of that socket take until that time. TimeoutError if it is past."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    made.settimeout(left)


def received(made: socket.socket, memory: memoryview, deadline: float = float("inf")) -> bool:
    """Receive until the memory is full; False if the other side has closed the connection."""
    at, size = 0, len(memory)
    while at < size:
        got = made.recv_into(memory[at : at + CHUNK])
        if not got:
            return False
        at += got
        if at < size and time.monotonic() > deadline:  # bytes that trickle in must not extend it
            raise TimeoutError
    return True


def hang_up(made: socket.socket) -> None:
    """Shut a socket down: blocked calls at both ends return."""
    try:
        made.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side has closed it already
