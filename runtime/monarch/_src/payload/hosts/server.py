"""Payloads of this host, served to gateways of other hosts over TCP.

The server reads a piece from the segment of the process that sent the payload; it opens the
descriptor of the segment as a receiver on this host does. The sending process takes no part: it
only keeps the segment until the other host acknowledges the payload. Without an acknowledgement the
segment may be reused for another message; so before each record leaves, the server compares the use
number in the header with the requested one. Payloads of the gateway's own process are sent from
memory.

Runs in: a gateway (the client, the agent of a worker), on the threads of its `TcpServer`.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager

from monarch._src.net.streams.connection import Connection
from monarch._src.net.streams.protocol import (
    DONE,
    PART,
    PLACE,
    REFUSED,
    STALE,
    PartRequest,
    Request,
)
from monarch._src.net.streams.server import answer
from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.sender import HEADER
from monarch._src.system import shared_memory
from monarch._src.wire.encryption import RECORD

_HEADER = struct.Struct("<QI")  # key, use


class PartRequests:
    """Serves requests of kind PART; see `Requests`.

    REFUSED: this host can open neither the segment nor any other one of that process.
    STALE: the segment holds another message by now, or this process has no descriptor to spare.
    """

    kinds = (PART,)

    def __init__(
        self, has_process: Callable[[int], bool], served: Callable[[], OutgoingPayloads | None]
    ) -> None:
        """Args:
        has_process: whether that is the pid of a process of this session on this host.
        served: the payloads that this process itself has sent. Both are called on any thread.
        """
        self.incarnation = os.urandom(16)
        self._has_process = has_process
        self._served = served

    def serve(self, connection: Connection, request: Request) -> bool:
        """See `Requests`."""
        place = bytearray(PLACE.size)
        if not connection.receive(memoryview(place)):
            return False
        asked = PartRequest.unpacked(request, place)
        if asked.pid == os.getpid():
            return self._serve_own(connection, asked)
        if not self._has_process(asked.pid) or not _is_within(asked):
            answer(connection, REFUSED)
            return True
        try:
            with _opened(asked) as fd:
                return _serve_segment(connection, fd, asked)
        except _Unreadable as error:
            answer(connection, REFUSED if error.lasting else STALE)
            return True

    def _serve_own(self, connection: Connection, asked: PartRequest) -> bool:
        served, view = self._served(), None
        if served is not None:
            view = served.view(asked.key, asked.word, asked.part, asked.at, asked.size)
        if view is None:
            answer(connection, STALE)
            return True
        answer(connection, DONE)
        connection.send(view)
        return True


class _Unreadable(Exception):
    """A segment cannot be opened, or is not one. `lasting`: a later attempt fails too."""

    def __init__(self, *, lasting: bool) -> None:
        super().__init__()
        self.lasting = lasting


def _is_within(asked: PartRequest) -> bool:
    return asked.size > 0 and HEADER <= asked.offset <= asked.capacity - asked.size


@contextmanager
def _opened(asked: PartRequest) -> Generator[int]:
    try:
        fd = shared_memory.open_of(asked.pid, asked.fd, writable=False)
    except OSError as error:
        no_room = error.errno in (errno.EMFILE, errno.ENFILE)
        raise _Unreadable(lasting=not no_room) from error
    try:
        if os.fstat(fd).st_ino != asked.file or not shared_memory.is_sealed(fd, asked.capacity):
            raise _Unreadable(lasting=True)
        yield fd
    finally:
        os.close(fd)


def _serve_segment(connection: Connection, fd: int, asked: PartRequest) -> bool:
    """Send a piece of a segment record by record, so that each is encrypted while it is cached.

    The segment is read, not mapped: a page without memory causes an error here, not a fault.
    """
    header = _HEADER.pack(asked.key, asked.use)
    if os.pread(fd, _HEADER.size, 0) != header:
        answer(connection, STALE)
        return True
    answer(connection, DONE)
    room = memoryview(bytearray(min(RECORD, asked.size)))
    for at in range(0, asked.size, RECORD):
        part = room[: min(RECORD, asked.size - at)]
        got = os.preadv(fd, [part], asked.offset + at)
        shared_memory.fence()
        if got != len(part) or os.pread(fd, _HEADER.size, 0) != header:
            return False  # the receiver takes all further bytes for the piece
        connection.send(part)
    return True
