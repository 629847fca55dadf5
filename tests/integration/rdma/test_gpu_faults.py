"""Memory of a GPU where something fails: the right bytes by another way, or why there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monarch._src.system import shared_memory
from monarch.actor import ActorError, ProcMesh, SupervisionError
from monarch.config import configured
from monarch.rdma import RDMAHandleError, RDMAUnavailableError
from tests.conftest import Faults
from tests.integration.rdma.gpu_parties import (
    FromGpuMover,
    GpuHolder,
    GpuMover,
    NoDeviceMover,
    OtherGpuMover,
    RenumberedMover,
    way_of,
    ways,
)
from tests.integration.rdma.parties import Holder
from tests.integration.rdma.test_deaths import (
    test_a_handle_outlives_its_owner_as_an_error,
    test_a_receiver_that_dies_half_way_costs_the_owner_nothing,
    test_an_owner_that_dies_half_way_is_a_typed_error,
    test_owners_that_die_leave_nothing_with_who_read_them,
)
from tests.support.fake_cuda import (
    INVALID_VALUE,
    LAUNCH_FAILED,
    MAP_FAILED,
    OUT_OF_MEMORY,
)

__all__ = [
    "test_a_handle_outlives_its_owner_as_an_error",
    "test_a_receiver_that_dies_half_way_costs_the_owner_nothing",
    "test_an_owner_that_dies_half_way_is_a_typed_error",
    "test_owners_that_die_leave_nothing_with_who_read_them",
]
Spawn = Callable[..., ProcMesh]
pytestmark = [
    pytest.mark.skipif(not shared_memory.PRESENT, reason="cuda_ipc and cma need Linux"),
    pytest.mark.slow,
]
MIB = 1 << 20


@pytest.fixture(params=ways(("cuda_ipc", "of gpu", "to gpu"), ("tcp", "of gpu", "to gpu")))
def transport(request: pytest.FixtureRequest) -> str:
    return way_of(request.param)


def sides(procs: ProcMesh, mover: type[Any] = GpuMover, holder: type[Any] = GpuHolder) -> Any:
    return procs.slice(gpus=0).spawn("holder", holder), procs.slice(gpus=1).spawn("mover", mover)


def over_tcp(mover: Any, buffer: Any, seed: int, *words: str) -> None:
    """The bytes came by TCP, which was warned of once, with those words; the report has them."""
    used, warned = mover.read_with_warnings.call_one(buffer, seed).get()
    assert used == "tcp"
    assert [category for category, _ in warned] == ["RDMATcpFallbackWarning"]
    ((transport, failed, _),) = mover.used.call_one().get()
    assert transport == "tcp"
    for word in words:
        assert word in warned[0][1]
        assert word in failed["cuda_ipc"]


@pytest.mark.parametrize("when", ["open", "first", "half way"])
def test_cuda_ipc_that_fails_is_replaced_with_one_warning_and_the_right_bytes(
    procs: ProcMesh, when: str
) -> None:
    holder, mover = sides(procs)
    buffer = holder.make.call_one(3 * MIB + 7, False, seed=5).get()
    mover.break_transport.call_one(buffer, "cuda_ipc", when).get()
    over_tcp(mover, buffer, 5, "it was cut by the test (don't cut it)")


@pytest.mark.parametrize(
    ("function", "result", "said"),
    [
        ("cuIpcOpenMemHandle_v2", MAP_FAILED, "CUDA_ERROR_MAP_FAILED (205)"),
        ("cuStreamCreate", OUT_OF_MEMORY, "cuStreamCreate failed: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemcpyAsync", INVALID_VALUE, "cuMemcpyAsync failed: CUDA_ERROR_INVALID_VALUE"),
        ("cuStreamSynchronize", LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED (719)"),
    ],
)
def test_a_driver_that_refuses_is_told_by_function_and_error(
    spawn_procs: Spawn, function: str, result: int, said: str
) -> None:
    holder, mover = sides(spawn_procs({"gpus": 2}, name="workers"), FromGpuMover)
    buffer = holder.make.call_one(3 * MIB, False, seed=6).get()
    if function.startswith(("cuMem", "cuStreamS")):  # not in the probe, but in a transfer
        assert mover.read.call_one(buffer, 6).get() == "cuda_ipc"
    mover.fail.call_one(function, 1, 1, result).get()
    over_tcp(mover, buffer, 6, said)


def test_what_cannot_be_exported_goes_by_tcp_with_the_remedy(procs: ProcMesh) -> None:
    holder, mover = sides(procs)
    buffer = holder.make_unexportable.call_one(3 * MIB, 7).get()
    over_tcp(
        mover, buffer, 7, "cuIpcGetMemHandle failed: CUDA_ERROR_INVALID_VALUE",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
    )  # fmt: skip


def test_a_buffer_that_cannot_be_exported_takes_cuda_ipc_from_no_other_one(
    procs: ProcMesh,
) -> None:
    holder, mover = sides(procs)
    closed = [holder.make_unexportable.call_one(1 * MIB, 2 * n + 1).get() for n in range(2)]
    opened = [holder.make.call_one(5 * MIB, False, seed=2 * n).get() for n in range(2)]
    over_tcp(mover, closed[0], 1, "expandable_segments:False")
    assert mover.read.call_one(opened[0], 0).get() == "cuda_ipc"
    sources = [opened[0], closed[0], opened[1], closed[1]]
    sinks = [holder.make_unexportable.call_one(1 * MIB, 9).get()]
    sinks.append(holder.make.call_one(5 * MIB, False).get())
    assert mover.batch.call_one(sources, sinks).get()
    for at, sink in ((4, 100), (5, 101)):
        assert holder.holds.call_one(at, sinks[sink - 100].size(), sink).get()
    used, warned = mover.read_with_warnings.call_one(opened[1], 2).get()
    assert (used, warned) == ("cuda_ipc", [])
    ((transport, failed, transfers),) = mover.used.call_one().get()
    assert (transport, transfers["tcp"]) == ("cuda_ipc", 3 + 2 * 2)
    assert "expandable_segments:False" in failed["cuda_ipc"]


def test_what_cannot_be_exported_is_an_error_that_says_why_without_the_fallback(
    spawn_procs: Spawn,
) -> None:
    with configured(rdma_allow_tcp_fallback=False):
        holder, mover = sides(spawn_procs({"gpus": 2}, name="workers"))
        closed = holder.make_unexportable.call_one(1000, 7).get()
        with pytest.raises(ActorError, match="expandable_segments:False") as raised:
            mover.first_byte.call_one(closed).get()
        buffer = holder.make.call_one(1000, False, seed=8).get()
        assert mover.read.call_one(buffer, 8).get() == "cuda_ipc"
    assert isinstance(raised.value.exception, RDMAUnavailableError)


def test_memory_of_a_gpu_that_goes_by_tcp_is_told_though_other_memory_does_already(
    procs: ProcMesh,
) -> None:
    holder, mover = sides(procs)
    plain: Any = procs.slice(gpus=0).spawn("plain", Holder)
    of_host = plain.make.call_one(3 * MIB, False, seed=2).get()
    mover.break_transport.call_one(of_host, "cma", "open").get()
    used, warned = mover.read_with_warnings.call_one(of_host, 2).get()
    assert (used, len(warned)) == ("tcp", 1)
    buffer = holder.make_unexportable.call_one(3 * MIB, 7).get()
    over_tcp(mover, buffer, 7, "expandable_segments:False")


def test_who_has_no_gpu_reads_and_writes_memory_of_one_by_tcp(spawn_procs: Spawn) -> None:
    holder, mover = sides(spawn_procs({"gpus": 2}, name="workers"), NoDeviceMover)
    buffer = holder.make.call_one(3 * MIB, False, seed=8).get()
    over_tcp(mover, buffer, 8, "CUDA_ERROR_NO_DEVICE")
    assert mover.write.call_one(buffer, 3 * MIB, 9).get() == "tcp"
    assert holder.holds.call_one(0, 3 * MIB, 9).get()


def test_devices_that_cannot_reach_each_other_are_no_error(spawn_procs: Spawn) -> None:
    holder, mover = sides(spawn_procs({"gpus": 2}, name="workers"), OtherGpuMover)
    buffer = holder.make.call_one(3 * MIB, False, seed=8).get()
    over_tcp(mover, buffer, 8, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED")


def test_a_device_may_have_another_number_in_each_process(spawn_procs: Spawn) -> None:
    holder, mover = sides(spawn_procs({"gpus": 2}, name="workers"), RenumberedMover)
    buffer = holder.make.call_one(3 * MIB, False, seed=8).get()
    assert mover.read.call_one(buffer, 8).get() == "cuda_ipc"


def test_without_the_fallback_it_is_an_error_that_says_why(spawn_procs: Spawn) -> None:
    with configured(rdma_allow_tcp_fallback=False):
        holder, mover = sides(spawn_procs({"gpus": 2}, name="workers"), NoDeviceMover)
        buffer = holder.make.call_one(1000, False).get()
        with pytest.raises(ActorError, match="CUDA_ERROR_NO_DEVICE") as raised:
            mover.first_byte.call_one(buffer).get()
    assert isinstance(raised.value.exception, RDMAUnavailableError)


# --- a GPU that fails on its way through the host -------------------------------------------------


def test_an_owner_whose_gpu_fails_says_so_and_goes_on(spawn_procs: Spawn) -> None:
    holder, mover = sides(spawn_procs({"gpus": 2}, name="workers"), NoDeviceMover)
    mover.only.call_one("tcp").get()
    size = 4 * MIB - 1  # one request, two halves of a chunk
    buffer = holder.make.call_one(size, False, seed=8).get()
    holder.fail.call_one("cuMemHostAlloc", 1, 1, OUT_OF_MEMORY).get()
    with pytest.raises(ActorError, match=r"could not copy the memory of its GPU \(CUDA error 2\)"):
        mover.first_byte.call_one(buffer).get()
    assert mover.read.call_one(buffer, 8).get() == "tcp"
    holder.fail.call_one("cuStreamSynchronize", 2, 1, LAUNCH_FAILED).get()  # half way
    with pytest.raises(ActorError, match=r"the connection to .* broke") as raised:
        mover.first_byte.call_one(buffer).get()
    assert isinstance(raised.value.exception, RDMAUnavailableError)
    assert mover.read.call_one(buffer, 8).get() == "tcp"
    assert mover.write.call_one(buffer, size, 3).get() == "tcp"
    assert holder.holds.call_one(0, size, 3).get()


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_gpu_of_ours_that_fails_is_an_error_and_no_fault_of_the_transport(
    spawn_procs: Spawn, way: str
) -> None:
    holder, mover = sides(spawn_procs({"gpus": 2}, name="workers"), GpuMover, Holder)
    buffer = holder.make.call_one(9 * MIB, False, seed=4).get()
    assert mover.read.call_one(buffer, 4).get() == "cma"
    before = mover.held.call_one().get()
    mover.fail.call_one("cuMemcpyAsync", 4, 1, LAUNCH_FAILED).get()  # the first fills the room
    move = mover.read if way == "read" else mover.write
    rest = (4,) if way == "read" else (9 * MIB, 5)
    with pytest.raises(ActorError, match="CUDA_ERROR_LAUNCH_FAILED") as raised:
        move.call_one(buffer, *rest).get()
    assert isinstance(raised.value.exception, RDMAUnavailableError)
    assert mover.read_any.call_one(buffer).get() == "cma"
    after = mover.held.call_one().get()
    assert after["allocations"] == before["allocations"]
    assert after["chunks"] <= 2  # one for each thread that moves


# --- resources that are held ----------------------------------------------------------------------


def test_many_regions_of_one_allocation_are_exported_and_opened_once(procs: ProcMesh) -> None:
    holder, mover = sides(procs)
    buffers = holder.make_parts.call_one(500, 1000).get()
    assert holder.exported.call_one().get() == 1
    assert mover.read_many.call_one(buffers).get()
    assert mover.opened.call_one().get() == 1
    holder.forget.call_one().get()
    assert holder.exported.call_one().get() == 0
    other = holder.make.call_one(1000, False).get()
    mover.read.call_one(other).get()
    assert mover.opened.call_one().get() == 1


def test_who_misses_a_region_closes_what_it_lay_in(procs: ProcMesh) -> None:
    holder, mover = sides(procs)
    buffer = holder.make.call_one(1000, False).get()
    mover.read.call_one(buffer).get()
    assert mover.opened.call_one().get() == 1
    holder.forget.call_one().get()
    with pytest.raises(ActorError, match="its memory was freed") as raised:
        mover.read.call_one(buffer).get()
    assert isinstance(raised.value.exception, RDMAHandleError)
    assert mover.opened.call_one().get() == 0


def test_a_thousand_transfers_hold_no_more_than_one(procs: ProcMesh) -> None:
    holder, mover = sides(procs)
    buffer = holder.make.call_one(10_000, False).get()
    for names in (("cuda_ipc",), ("tcp",)):
        mover.forget.call_one(buffer).get()
        while mover.held.call_one().get()["opened"]:
            pass  # what was open is closed on another thread
        mover.only.call_one(*names).get()
        mover.repeat.call_one(buffer, 1).get()
        before = mover.held.call_one().get(), holder.held.call_one().get()
        mover.repeat.call_one(buffer, 500).get()
        assert (mover.held.call_one().get(), holder.held.call_one().get()) == before


def test_who_dies_with_a_region_locked_keeps_nobody_from_dropping_it(
    spawn_procs: Spawn, faults: Faults
) -> None:
    holder: Any = spawn_procs({"gpus": 1}, name="owners").spawn("holder", GpuHolder)
    mover: Any = spawn_procs({"gpus": 1}, name="movers").spawn("mover", GpuMover)
    buffer = holder.make.call_one(3 * MIB, False).get()
    mover.read.call_one(buffer).get()
    mover.kill_self_at.call_one("cuMemcpyAsync", 2).get()  # the first fills what is written
    with pytest.raises(SupervisionError):
        mover.write.call_one(buffer, 3 * MIB, 1).get()
    holder.forget.call_one().get()
    assert holder.exported.call_one().get() == 0
    faults.take()
