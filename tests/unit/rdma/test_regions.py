"""What one process has registered: until when it can be reached, and what is held for it."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator

import numpy
import pytest
import torch

from monarch._src.rdma.key_table import KeyView, range_of
from monarch._src.rdma.memory import view_of
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.shared_segments import segment_of, shared_empty
from monarch._src.system import shared_memory

pytestmark = pytest.mark.skipif(
    not shared_memory.PRESENT, reason="memory of other processes needs Linux"
)


@pytest.fixture
def regions() -> Iterator[Regions]:
    made = Regions("node", "address")
    yield made
    made.validate()
    made.close()


def is_live(regions: Regions, slot: int, key: bytes, size: int) -> bool:
    where, length = regions._maps[0]  # pyright: ignore[reportPrivateUsage]
    return KeyView(view_of(where, length)).find(slot, key, size) is not None


def test_a_storage_is_registered_once_however_many_buffers_it_has(regions: Regions) -> None:
    tensor = torch.zeros(100)
    first = regions.register(memory_of(tensor))
    second = regions.register(memory_of(tensor[10:20]))
    assert regions.registered == 1
    assert first[1] != second[1]
    regions.drop(first[0], first[1])
    assert is_live(regions, second[0], second[1], 40)


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_the_end_of_a_storage_ends_its_handles(regions: Regions, kind: str) -> None:
    value = torch.zeros(100) if kind == "tensor" else numpy.zeros(100, numpy.float32)
    slot, key, _ = regions.register(memory_of(value[5:]))
    gc.collect()
    assert is_live(regions, slot, key, 380)
    del value
    gc.collect()
    assert not is_live(regions, slot, key, 380)
    assert len(regions) == 0
    assert regions.hold(slot, key) is None


def test_memory_that_tells_nobody_of_its_end_is_kept_until_the_drop(regions: Regions) -> None:
    data = bytearray(100)
    slot, key, _ = regions.register(memory_of(data))
    with pytest.raises(BufferError):
        data.extend(b"more")
    regions.drop(slot, key)
    data.extend(b"more")


def test_a_drop_with_another_key_drops_nothing(regions: Regions) -> None:
    data = bytearray(100)
    slot, key, _ = regions.register(memory_of(data))
    assert not regions.drop(slot, bytes(16))
    assert is_live(regions, slot, key, 100)
    assert regions.drop(slot, key)
    assert not regions.drop(slot, key)


def test_a_drop_waits_for_who_writes_in_another_process(regions: Regions) -> None:
    slot, key, _ = regions.register(memory_of(bytearray(100)))
    page = regions.owner.page
    writer = os.open(f"/proc/self/fd/{page}", os.O_RDONLY)  # as a peer opens it
    shared_memory.lock_shared(writer, *range_of(slot))
    dropped = threading.Event()

    def drop() -> None:
        regions.drop(slot, key)
        dropped.set()

    thread = threading.Thread(target=drop)
    thread.start()
    while is_live(regions, slot, key, 100):  # who comes now is refused already
        pass
    assert not dropped.is_set()
    os.close(writer)  # or its process dies
    thread.join()
    assert dropped.is_set()


def test_a_drop_ends_what_this_process_serves(regions: Regions) -> None:
    slot, key, _ = regions.register(memory_of(bytearray(100)))
    stopped = threading.Event()
    held = regions.hold(slot, key, stopped.set)
    assert held is not None
    thread = threading.Thread(target=regions.drop, args=(slot, key))
    thread.start()
    assert stopped.wait(60)
    assert thread.is_alive()
    regions.release(held, stopped.set)
    thread.join()


def test_what_is_held_keeps_its_memory(regions: Regions) -> None:
    tensor = torch.ones(100)
    slot, key, _ = regions.register(memory_of(tensor))
    held = regions.hold(slot, key)
    assert held is not None
    del tensor
    gc.collect()
    assert bytes(view_of(held.address, 4)) == torch.ones(1).numpy().tobytes()
    regions.release(held)
    held = None
    gc.collect()
    assert len(regions) == 0


def test_storages_that_end_on_other_threads_meanwhile_leave_all_in_order(regions: Regions) -> None:
    def churn() -> None:
        for _ in range(200):
            tensor = torch.zeros(16)
            regions.register(memory_of(tensor))
            del tensor

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    regions.validate()
    assert len(regions) == 0


def test_a_fork_that_frees_its_copy_ends_nothing_here(regions: Regions) -> None:
    tensor = torch.frombuffer(shared_empty(100), dtype=torch.uint8).fill_(7)
    slot, key, shared = regions.register(memory_of(tensor))
    assert shared
    pid = os.fork()
    if pid == 0:
        del tensor
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert is_live(regions, slot, key, 100)
    assert int(tensor.sum()) == 700


# --- segments -------------------------------------------------------------------------------------


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:monarch-data" in line for line in maps)


def test_shared_memory_is_found_by_address_and_goes_with_its_last_view() -> None:
    before = mapped(), len(os.listdir("/proc/self/fd"))
    memory = shared_empty(10_000)
    assert bytes(memory[:10]) == bytes(10)
    array = numpy.frombuffer(memory, numpy.uint8)[100:]
    found = segment_of(array.ctypes.data, array.nbytes)
    assert found is not None
    assert found[1] == 100
    assert segment_of(array.ctypes.data, array.nbytes + 1) is None
    del memory
    gc.collect()
    assert mapped() == before[0] + 1
    del array, found
    gc.collect()
    assert (mapped(), len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.parametrize("size", [0, -1])
def test_shared_memory_of_no_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="above 0"):
        shared_empty(size)


def test_shared_memory_that_is_freed_here_takes_no_room_though_others_have_it_mapped() -> None:
    memory = shared_empty(1 << 20)
    memory[:] = b"x" * (1 << 20)
    found = segment_of(memory_of(memory).address, 1)
    assert found is not None
    other = os.open(f"/proc/self/fd/{found[0].fd}", os.O_RDONLY)
    try:
        assert os.fstat(other).st_blocks > 0
        ended = weakref.ref(memory.obj)
        del memory, found
        gc.collect()
        assert ended() is None
        assert os.fstat(other).st_blocks == 0
    finally:
        os.close(other)
