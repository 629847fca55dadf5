"""The server and the link of TCP, in one process and over real sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from monarch._src.net.streams.server import TcpServer
from monarch._src.rdma.handle import VERSION, Handle
from monarch._src.rdma.memory import Memory
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports.base import HandleExpired, Piece
from monarch._src.rdma.transports.tcp_client import TcpLink
from monarch._src.rdma.transports.tcp_regions import RegionRequests
from monarch._src.system import shared_memory
from tests.support.fake_gpu_arrays import DeviceArray
from tests.unit.rdma.gpus import fake

__all__ = ["fake"]
pytestmark = pytest.mark.skipif(
    not shared_memory.PRESENT, reason="memory of other processes needs Linux"
)
LOOPBACK = "127.0.0.1"
TIMES = 100
SIZES = [1, 4096, 4097, 3 << 20]


class Watched(Regions):
    """Tells how many uses of a region have not ended."""

    def users(self, slot: int) -> int:
        with self.lock:
            return self._regions[slot].users


class Sides:
    """A region of the server, and local memory of the same size."""

    def __init__(self, size: int, *, sealed: bool = False) -> None:
        self.regions = Watched("node", "address")
        self.server = TcpServer(RegionRequests(self.regions))
        place = self.server.place(LOOPBACK, [LOOPBACK], sealed=sealed)
        self.link = TcpLink(self.regions.owner, place, lambda: False, self.soon())
        self.data = numpy.arange(size, dtype=numpy.uint8)
        self.local = memory_of(numpy.zeros(size, numpy.uint8))

    @staticmethod
    def soon() -> float:
        return time.monotonic() + 60

    def registered(self, **changes: Any) -> Piece:
        memory = memory_of(self.data)
        slot, key, _ = self.regions.register(
            Memory(memory.address, memory.size, changes.pop("readonly", False), memory.keep)
        )
        handle = Handle(
            VERSION, self.regions.owner, slot, key, changes.get("size", memory.size), False, False,
            "actor", "id",
        )  # fmt: skip
        return Piece(handle, 0, self.local.address, self.local.size, self.local)

    def close(self) -> None:
        self.link.close()
        self.server.close()
        self.regions.close()


@pytest.fixture(params=["open", "sealed"])
def sealed(request: pytest.FixtureRequest) -> bool:
    return request.param == "sealed"


@pytest.fixture(params=SIZES)
def sides(request: pytest.FixtureRequest, sealed: bool) -> Iterator[Sides]:
    made = Sides(request.param, sealed=sealed)
    yield made
    made.close()


@pytest.mark.parametrize("way", ["read", "write"])
def test_who_has_the_whole_answer_is_not_being_served_any_more(sides: Sides, way: str) -> None:
    piece = sides.registered()
    move = sides.link.read_into if way == "read" else sides.link.write_from
    for _ in range(TIMES):
        move([piece], sides.soon())
        assert sides.regions.users(piece.handle.slot) == 0


@pytest.mark.parametrize("why", ["another size", "read-only"])
def test_who_was_refused_is_not_being_served_any_more(sides: Sides, why: str) -> None:
    wrong = {"size": sides.local.size + 1} if why == "another size" else {"readonly": True}
    piece = sides.registered(**wrong)
    for _ in range(TIMES):
        with pytest.raises(HandleExpired):
            sides.link.write_from([piece], sides.soon())
        assert sides.regions.users(piece.handle.slot) == 0


@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize("where", ["host", "gpu"])
@pytest.mark.usefixtures("fake")
def test_who_asks_for_no_bytes_is_refused_at_once(where: str, way: str, sealed: bool) -> None:
    sides = Sides(10, sealed=sealed)
    data = DeviceArray(10) if where == "gpu" else sides.data
    try:
        slot, key, _ = sides.regions.register(memory_of(data))
        handle = Handle(
            VERSION, sides.regions.owner, slot, key, 10, False, False, "actor", "id", where == "gpu"
        )
        move = sides.link.read_into if way == "read" else sides.link.write_from
        for _ in range(2):  # over the same connection
            with pytest.raises(HandleExpired):
                move([Piece(handle, 5, sides.local.address, 0, sides.local)], sides.soon())
        move([Piece(handle, 5, sides.local.address, 5, sides.local)], sides.soon())
    finally:
        sides.close()


def test_a_drop_takes_no_connection_from_who_has_its_answer(sides: Sides) -> None:
    for _ in range(TIMES):
        piece = sides.registered()
        sides.link.read_into([piece], sides.soon())
        assert sides.regions.drop(piece.handle.slot, piece.handle.key)
        with pytest.raises(HandleExpired):  # over the connection that was kept
            sides.link.read_into([piece], sides.soon())
