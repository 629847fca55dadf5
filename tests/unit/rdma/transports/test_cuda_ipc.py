"""The reader's side of `cuda_ipc`, with its owner in the same process: what it opens and keeps."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from monarch._src.rdma.cuda.exports import Exports
from monarch._src.rdma.cuda.gpu import Gpu, gpu, gpu_if_used, use_functions
from monarch._src.rdma.handle import VERSION, Handle
from monarch._src.rdma.key_table import PROBING, range_of
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    Piece,
    TransportFailed,
)
from monarch._src.rdma.transports.cma import CmaLink
from monarch._src.rdma.transports.cuda_ipc import CudaIpcLink
from monarch._src.rdma.transports.local_peer import LocalPeer
from monarch._src.system import shared_memory
from tests.support.fake_cuda import INVALID_VALUE, OUT_OF_MEMORY, FakeDriver
from tests.support.fake_gpu_arrays import DeviceArray

pytestmark = pytest.mark.skipif(
    not shared_memory.PRESENT, reason="memory of other processes needs Linux"
)
FAR = 1e12


class Both:
    """An owner and a reader that are one process, each with a driver of its own."""

    def __init__(self) -> None:
        self.of_owner, self.of_reader = FakeDriver(), FakeDriver()
        self.used: list[Gpu | None] = []
        self.regions = Regions("node", "address")
        self.array = self.made(10_000)
        self.handle = self.shared(self.array)
        self.now(self.of_reader)

    def now(self, driver: FakeDriver) -> None:
        """What follows is done by the process that has this driver."""
        self.used.append(gpu_if_used())
        use_functions(driver.functions)

    def made(self, size: int) -> DeviceArray:
        self.now(self.of_owner)
        found = DeviceArray(size)
        found.put(bytes(n % 251 for n in range(size)))
        return found

    def shared(self, array: Any) -> Handle:
        memory = memory_of(array)
        slot, key, _ = self.regions.register(memory)
        on_gpu = memory.device is not None
        owner = self.regions.owner
        return Handle(
            VERSION, owner, slot, key, memory.size, memory.readonly, False, "a", "a", on_gpu
        )

    def peer(self) -> LocalPeer:
        self.now(self.of_reader)
        return LocalPeer(self.regions.owner)

    def link(self) -> CudaIpcLink:
        return CudaIpcLink(self.peer())


@pytest.fixture
def both() -> Iterator[Both]:
    made = Both()
    yield made
    made.used.append(gpu_if_used())
    use_functions(None)
    made.regions.close()
    for used in made.used:
        if used is not None:
            used.give_back()
    vars(made).pop("array", None)
    gc.collect()
    left = made.of_reader.held()
    assert left["opened"] == left["streams"] == left["pinned"] == 0
    assert made.of_owner.held()["allocations"] == 0


def piece(handle: Handle, room: Any, offset: int = 0) -> Piece:
    memory = memory_of(room)
    return Piece(handle, offset, memory.address, memory.size, memory)


def is_waited_for(file: int) -> bool:
    """Whether somebody waits for a lock on it."""
    with open("/proc/locks") as locks:
        return any("->" in line and f":{file} " in line for line in locks)


def is_live(both: Both, peer: LocalPeer) -> bool:
    return peer.keys.find(both.handle.slot, both.handle.key, both.handle.size) is not None


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_drop_waits_for_a_copy_that_is_under_way(both: Both, way: str) -> None:
    link, peer = both.link(), both.peer()
    room = bytearray(10_000)
    copying, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        copying.set()
        assert go_on.wait(60)

    both.of_reader.at_call("cuStreamSynchronize", 1, wait)
    move = link.read_into if way == "read" else link.write_from
    mover = threading.Thread(target=_ignoring_stale, args=(move, [piece(both.handle, room)]))
    mover.start()
    assert copying.wait(60)
    dropped = threading.Event()

    def drop() -> None:
        both.regions.drop(both.handle.slot, both.handle.key)
        dropped.set()

    thread = threading.Thread(target=drop)
    thread.start()
    while is_live(both, peer):
        pass
    assert not dropped.is_set()
    go_on.set()
    thread.join()
    mover.join()
    link.close()


def _ignoring_stale(move: Any, pieces: list[Piece]) -> None:
    try:
        move(pieces, FAR)
    except HandleExpired:
        pass  # it was dropped meanwhile, which a read is told of


def test_the_owner_does_nothing_while_it_is_read_and_written(both: Both) -> None:
    link = both.link()
    before = both.of_owner.calls.copy()
    room = bytearray(10_000)
    link.read_into([piece(both.handle, room)], FAR)
    assert room == bytes(n % 251 for n in range(10_000))
    link.write_from([piece(both.handle, b"changed", 100)], FAR)
    assert both.of_owner.calls == before
    assert both.array.tobytes()[98:109] == bytes([98, 99]) + b"changed" + bytes([107, 108])
    assert link.opened == 1
    link.close()
    assert link.opened == 0


def test_an_opening_is_closed_when_no_copy_uses_it_any_more(both: Both) -> None:
    link = both.link()
    copying, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        copying.set()
        assert go_on.wait(60)

    both.of_reader.at_call("cuStreamSynchronize", 1, wait)
    room = bytearray(10_000)
    mover = threading.Thread(target=link.read_into, args=([piece(both.handle, room)], FAR))
    mover.start()
    assert copying.wait(60)
    link.close(now=True)
    assert link.opened == 1
    go_on.set()
    mover.join()
    assert link.opened == 0
    assert both.of_reader.held()["opened"] == 0
    assert room == bytes(n % 251 for n in range(10_000))
    with pytest.raises(TransportFailed, match="was closed"):
        link.read_into([piece(both.handle, room)], FAR)


def test_a_handle_that_lies_leads_nowhere(both: Both) -> None:
    link, room = both.link(), bytearray(10_000)
    for lie in ({"key": bytes(16)}, {"slot": both.handle.slot + 1}, {"gpu": False}):
        forged = msgspec.structs.replace(both.handle, **lie)
        with pytest.raises(HandleExpired):
            link.read_into([piece(forged, room)], FAR)
    of_host = both.shared(bytearray(10_000))
    with pytest.raises(HandleExpired):
        link.read_into([piece(msgspec.structs.replace(of_host, gpu=True), room)], FAR)
    with pytest.raises(HandleExpired):  # the address of a GPU is none that a processor may be given
        CmaLink(both.peer()).read_into(
            [piece(msgspec.structs.replace(both.handle, gpu=False), room)], FAR
        )
    assert room == bytes(10_000)
    link.close()


def test_what_is_read_only_is_not_written(both: Both) -> None:
    fixed = both.made(100)
    fixed.readonly = True
    handle = both.shared(fixed)
    link = both.link()
    with pytest.raises(HandleExpired):
        link.write_from([piece(handle, b"changed")], FAR)
    with pytest.raises(DeadlineExceeded):
        link.read_into([piece(handle, bytearray(100))], 0.0)
    link.close()


def test_memory_that_comes_where_other_memory_was_is_another_one(both: Both) -> None:
    link, room = both.link(), bytearray(10_000)
    link.read_into([piece(both.handle, room)], FAR)
    address = both.array.address
    both.now(both.of_owner)
    del both.array
    array = DeviceArray(10_000)
    assert array.address == address
    array.put(b"x" * 10_000)
    handle = both.shared(array)
    both.now(both.of_reader)
    with pytest.raises(HandleExpired):
        link.read_into([piece(both.handle, room)], FAR)
    assert room != b"x" * 10_000
    link.read_into([piece(handle, room)], FAR)
    assert room == b"x" * 10_000
    assert link.opened == 1
    link.close()


def test_one_action_may_read_and_write_several_allocations(both: Both) -> None:
    others = [both.made(5000 + n) for n in range(5)]
    handles = [both.shared(other) for other in others]
    link = both.link()
    rooms = [bytearray(5000 + n) for n in range(5)]
    link.read_into([piece(h, room) for h, room in zip(handles, rooms, strict=True)], FAR)
    for n, room in enumerate(rooms):
        assert room == bytes(at % 251 for at in range(5000 + n))
    assert link.opened == 5
    link.close()


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuIpcGetMemHandle"])
def test_an_owner_that_has_nothing_to_probe_says_why(function: str) -> None:
    both = Both.__new__(Both)
    both.of_owner, both.of_reader, both.used = FakeDriver(), FakeDriver(), []
    both.regions = Regions("node", "address")
    array = both.made(100)
    both.of_owner.fail(function, OUT_OF_MEMORY)
    both.shared(array)
    with pytest.raises(TransportFailed, match="CUDA_ERROR_OUT_OF_MEMORY"):
        both.link()
    both.regions.close()
    del array
    use_functions(None)
    assert both.of_owner.held()["allocations"] == 0


def test_memory_in_several_allocations_cannot_be_opened_but_is_registered(both: Both) -> None:
    both.now(both.of_owner)
    array = both.made(100)
    both.of_owner.fail("cuMemGetAddressRange_v2", INVALID_VALUE)
    handle = both.shared(array)
    link = both.link()
    with pytest.raises(TransportFailed, match="cuMemGetAddressRange_v2 failed") as raised:
        link.read_into([piece(handle, bytearray(100))], FAR)
    assert "expandable_segments:False" in raised.value.why.remedy
    link.read_into([piece(both.handle, bytearray(10_000))], FAR)  # others can
    link.close()


def test_the_probes_memory_is_not_freed_while_somebody_probes(both: Both) -> None:
    peer = both.peer()
    ended = threading.Event()

    def close() -> None:
        both.regions.close()
        ended.set()

    closing = threading.Thread(target=close)
    with peer.keeping((PROBING,)):
        closing.start()
        table = os.stat(f"/proc/self/fd/{both.regions.owner.page}").st_ino
        while not is_waited_for(table):
            assert closing.is_alive()
        assert not ended.is_set()
        assert both.of_owner.held()["allocations"] == 2
    closing.join()
    assert both.of_owner.held()["allocations"] == 1
    assert range_of(PROBING)[0] >= 0


def test_a_table_that_is_full_takes_regions_that_cannot_be_opened(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch._src.rdma.cuda.exports.CAPACITY", 4)
    arrays = [both.made(100) for _ in range(4)]
    handles = [both.shared(array) for array in arrays]
    monkeypatch.undo()
    link = both.link()
    link.read_into([piece(handles[0], bytearray(100))], FAR)
    for handle in handles[1:]:
        with pytest.raises(TransportFailed, match="more GPU allocations registered than its table"):
            link.read_into([piece(handle, bytearray(100))], FAR)
    for handle in handles[1:]:
        both.regions.drop(handle.slot, handle.key)
    again = both.shared(both.array)
    link.read_into([piece(again, bytearray(100))], FAR)
    link.close()


def test_a_closed_process_exports_nothing(both: Both) -> None:
    both.now(both.of_owner)
    exports = Exports(gpu(), bytes(16), gpu().devices[0])
    before = both.of_owner.held()["allocations"]
    exports.close()
    assert both.of_owner.held()["allocations"] == before - 1
