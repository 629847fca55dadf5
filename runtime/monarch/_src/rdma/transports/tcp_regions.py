"""Registered memory, read and written over TCP by processes without a faster transport.

The owner compares the key before it touches any memory. Bytes are received in their final place;
only the whole request is acknowledged. The bytes of a GPU pass through pinned chunks. The owner
releases the region before it sends the last bytes of an answer. So if the region is dropped after
that, the drop does not hang up this connection, which the requester may already use for its next
request.

Runs in: the owner, on the threads of its `TcpServer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from monarch._src.net.streams.connection import Connection
from monarch._src.net.streams.protocol import (
    DONE,
    FAILED,
    READ,
    REFUSED,
    STALE,
    WRITE,
    Request,
)
from monarch._src.net.streams.server import answer
from monarch._src.rdma.cuda.driver import CudaError, GpuError
from monarch._src.rdma.cuda.gpu import gpu, rounds
from monarch._src.rdma.memory import Device, view_of
from monarch._src.rdma.regions import Held, Regions

log = logging.getLogger("monarch.rdma")
_LAST = 1 << 12  # bytes of a READ that are sent after the region is released


def _send_from_gpu(
    connection: Connection, device: Device, address: int, size: int, begin: Callable[[], None],
    copied: Callable[[], None],
) -> None:  # fmt: skip
    """Send memory of a GPU. Raises GpuError.

    `begin` is called when the first bytes have come from the GPU; `copied` when all of them have,
    before the last ones are sent.
    """
    with gpu().chunks.taken(device.ordinal) as halves:
        todo = [cut for (cut,) in rounds([size], halves[0].size)]
        for n in range(len(todo) + 1):
            if n < len(todo):  # meanwhile the other half is being sent
                half, cut = halves[n % 2], todo[n]
                half.stream.copy(half.address, address + cut.offset, cut.size)
            if n:
                half, cut = halves[(n - 1) % 2], todo[n - 1]
                half.stream.wait()
                if n == 1:
                    begin()
                if n == len(todo):
                    copied()
                connection.send(view_of(half.address, cut.size))


def _receive_to_gpu(
    connection: Connection, device: Device, address: int, size: int, begin: Callable[[], None]
) -> bool:
    """Receive into memory of a GPU; False if the other side has closed the connection.

    `begin` is called when memory for the bytes is available. Raises GpuError.
    """
    with gpu().chunks.taken(device.ordinal) as halves:
        begin()
        for n, (cut,) in enumerate(rounds([size], halves[0].size)):
            half = halves[n % 2]
            half.stream.wait()
            if not connection.receive(view_of(half.address, cut.size)):
                return False
            half.stream.copy(address + cut.offset, half.address, cut.size)
    return True


class RegionRequests:
    """Serves requests of kinds READ and WRITE; see `Requests`."""

    kinds = (READ, WRITE)

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    @property
    def incarnation(self) -> bytes:
        """The incarnation of this process's data plane."""
        return self._regions.owner.incarnation

    def serve(self, connection: Connection, request: Request) -> bool:
        """See `Requests`."""
        stop = connection.hang_up
        held = self._regions.hold(request.slot, request.key, stop)
        if held is None:
            answer(connection, STALE)
            return True
        using = True

        def let_go() -> None:
            nonlocal using
            if using:
                using = False
                self._regions.release(held, stop)
                held.keep = None

        try:
            if held.size != request.whole:
                let_go()
                answer(connection, STALE)
                return True
            return self._move(connection, held, let_go, request)
        finally:
            let_go()

    def _move(
        self, connection: Connection, held: Held, let_go: Callable[[], None], request: Request
    ) -> bool:
        what, offset, size = request.what, request.offset, request.size
        if not size or offset + size > held.size or (what == WRITE and held.readonly):
            let_go()
            answer(connection, REFUSED)
            return True
        address, device = held.address + offset, held.device
        if device is not None:
            return self._move_on_gpu(connection, device, address, let_go, what, size)
        answer(connection, DONE)
        memory = view_of(address, size)
        if what == READ:
            end = max(0, size - _LAST)
            connection.send(memory[:end])
            last = bytes(memory[end:])
            let_go()
            connection.send(last)
            return True
        if not connection.receive(memory):
            return False
        let_go()
        answer(connection, DONE, size)
        return True

    def _move_on_gpu(
        self, connection: Connection, device: Device, address: int,
        let_go: Callable[[], None], what: int, size: int,
    ) -> bool:  # fmt: skip
        begun = False

        def begin() -> None:
            nonlocal begun
            begun = True
            answer(connection, DONE)

        try:
            if what == READ:
                _send_from_gpu(connection, device, address, size, begin, let_go)
                return True
            if not _receive_to_gpu(connection, device, address, size, begin):
                return False
        except GpuError as error:
            log.warning("serving memory of GPU %d failed: %s", device.ordinal, error)
            if begun:  # the requester would take an answer for bytes
                return False
            let_go()
            answer(connection, FAILED, error.number if isinstance(error, CudaError) else 0)
            return True
        let_go()
        answer(connection, DONE, size)
        return True
