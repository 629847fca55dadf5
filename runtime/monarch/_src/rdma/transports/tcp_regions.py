"""Registered memory, read and written over TCP by those to whom nothing faster leads.

The owner compares the key before it touches any memory. Bytes are received where they belong;
nothing is acknowledged but the whole. The owner has let go of the region before it sends the last
of what it answers: whoever drops the region then must not take this connection, which is its
requester's for what comes next, for one that still uses it.

Runs in: the owner, on the threads of its `TcpServer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from monarch._src.rdma.cuda import socket_copy
from monarch._src.rdma.cuda.driver import CudaError, GpuError
from monarch._src.rdma.memory import Device, view_of
from monarch._src.rdma.regions import Held, Regions
from monarch._src.rdma.transports.tcp_channel import Connection
from monarch._src.rdma.transports.tcp_protocol import (
    DONE,
    FAILED,
    READ,
    REFUSED,
    STALE,
    WRITE,
    Request,
)
from monarch._src.rdma.transports.tcp_server import answer

log = logging.getLogger("monarch.data")
_LAST = 1 << 12  # bytes of a READ that are sent once the region is let go of


class RegionRequests:
    """See `Requests`: READ and WRITE."""

    kinds = (READ, WRITE)

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    @property
    def incarnation(self) -> bytes:
        """That of this process's memory."""
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
                socket_copy.send(connection, device, address, size, begin, let_go)
                return True
            if not socket_copy.receive(connection, device, address, size, begin):
                return False
        except GpuError as error:
            log.warning("serving memory of GPU %d failed: %s", device.ordinal, error)
            if begun:  # what is said now would be taken for bytes
                return False
            let_go()
            answer(connection, FAILED, error.number if isinstance(error, CudaError) else 0)
            return True
        let_go()
        answer(connection, DONE, size)
        return True
