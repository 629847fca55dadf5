"""TCP: connections beside the control path, for processes between which nothing faster works.

The owner of the memory serves it (`net.streams.server`); the messages are described in
`net.streams.protocol`.

Runs in: the process that reads and writes, on threads that move bytes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from monarch._src.net.streams.connection import Connection
from monarch._src.net.streams.protocol import (
    ANSWER,
    DONE,
    ECHO,
    ECHO_BYTES,
    FAILED,
    HELLO_S,
    MAGIC,
    READ,
    REQUEST,
    WRITE,
    WRONG_PROCESS,
)
from monarch._src.net.streams.sockets import Connector
from monarch._src.rdma.handle import Owner
from monarch._src.rdma.memory import view_of
from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    OwnerGone,
    Piece,
    TransportFailed,
)

STREAMS = 4
_LET_THROUGH = "a firewall between the hosts has to let that port through"


class TcpLink:
    """See `base.Transport`. Connections are made when calls need them, and kept."""

    name: ClassVar[str] = "tcp"
    at_once: ClassVar[bool] = False
    takes_gpus: ClassVar[bool] = False

    def __init__(
        self, owner: Owner, connector: Connector, gone: Callable[[], bool], deadline: float
    ) -> None:
        """`gone`: whether the owner's process is known to have ended.

        Raises:
            TransportFailed: the owner cannot be reached. OwnerGone, DeadlineExceeded: as named.
        """
        self._owner = owner
        self._connector = connector
        self._gone = gone
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._closed = False
        self.sealed = connector.sealed
        self.streams = min(STREAMS, max(2, os.cpu_count() or 1))
        self.piece = 1 << 26
        self._probe(deadline)

    def _probe(self, deadline: float) -> None:
        sent, came = os.urandom(ECHO_BYTES), bytearray(ECHO_BYTES)

        def echo(connection: Connection, deadline: float) -> None:
            self._ask(connection, ECHO, None, 0, ECHO_BYTES, deadline)
            connection.send(sent)
            _fill(connection, memoryview(came), deadline)

        patience = time.monotonic() + HELLO_S
        try:
            self._with_connection(echo, min(deadline, patience))
        except DeadlineExceeded:
            if deadline <= patience:
                raise
            raise TransportFailed(
                f"{self._connector.text} did not answer within {HELLO_S:g} s", _LET_THROUGH
            ) from None
        if sent != bytes(came):
            raise TransportFailed("the probe received other bytes than it had sent")

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        def read(connection: Connection, deadline: float) -> None:
            for piece in pieces:
                self._ask(connection, READ, piece, piece.offset, piece.size, deadline)
                _fill(connection, view_of(piece.address, piece.size), deadline)

        self._with_connection(read, deadline)

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        def write(connection: Connection, deadline: float) -> None:
            for piece in pieces:
                self._ask(connection, WRITE, piece, piece.offset, piece.size, deadline)
                connection.send(view_of(piece.address, piece.size), deadline)
                self._status(connection, piece, deadline)

        self._with_connection(write, deadline)

    def _with_connection(self, use: Callable[[Connection, float], None], deadline: float) -> None:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is None:
                connection = self._connector.connect(deadline)
            with self._lock:
                self._used.add(connection)
                if self._closed:
                    raise ConnectionResetError("this process is leaving its session")
            use(connection, deadline)
        except TimeoutError as error:
            _drop(connection)
            raise DeadlineExceeded from error
        except OSError as error:
            _drop(connection)
            if self._gone():
                raise OwnerGone("its process has ended") from error
            raise TransportFailed(
                f"the connection to {self._connector.text} broke: {error}"
            ) from error
        except HandleExpired:
            self._put_back(connection)
            raise
        except BaseException:
            _drop(connection)
            raise
        finally:
            with self._lock:
                self._used.discard(connection)  # pyright: ignore[reportArgumentType]
        self._put_back(connection)

    def _ask(
        self, connection: Connection, what: int, piece: Piece | None, offset: int, size: int,
        deadline: float,
    ) -> None:  # fmt: skip
        slot, key, whole = 0, bytes(16), 0
        if piece is not None:
            slot, key, whole = piece.handle.slot, piece.handle.key, piece.handle.size
        connection.until(deadline)
        connection.send(
            REQUEST.pack(MAGIC, what, slot, self._owner.incarnation, key, whole, offset, size)
        )
        self._status(connection, piece, deadline)

    def _status(self, connection: Connection, piece: Piece | None, deadline: float) -> None:
        head = bytearray(ANSWER.size)
        _fill(connection, memoryview(head), deadline)
        magic, status, number = ANSWER.unpack(head)
        if magic != MAGIC:
            raise TransportFailed(f"the answer from {self._connector.text} is not one of a peer")
        if status == WRONG_PROCESS:
            raise OwnerGone("another process listens at its address now")
        if status == FAILED:
            raise TransportFailed(
                f"process {self._owner.pid} could not copy the memory of its GPU (CUDA error "
                f"{number}): its log says more"
            )
        if status != DONE and piece is not None:
            raise HandleExpired(piece.handle)

    def _put_back(self, connection: Connection | None) -> None:
        with self._lock:
            if connection is not None and not self._closed:
                self._idle.append(connection)
                return
        _drop(connection)

    def close(self, *, now: bool = False) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._used if now else ():
                connection.hang_up()
        for connection in idle:
            connection.close()


def _fill(connection: Connection, memory: memoryview, deadline: float) -> None:
    connection.until(deadline)
    if not connection.receive(memory, deadline):
        raise ConnectionResetError("the other process closed the connection")


def _drop(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
