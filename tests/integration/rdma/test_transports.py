"""The contract that every transport keeps, between real processes.

It runs here over memory of the host: shared memory, cross-memory attach and TCP, plain and
encrypted. `test_gpu_contract.py` runs the same tests with memory of GPUs, and
`test_ibverbs_contract.py` over an RDMA card: both import this module's `__all__`, and have a
fixture `transport` of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.system import shared_memory
from monarch.actor import ActorError, ProcMesh, this_host
from monarch.rdma import RDMABuffer, RDMAHandleError
from tests.integration.rdma.parties import ENCRYPTED, TRANSPORTS, sides_of, way_over

__all__ = [
    "procs",
    "sides",
    "test_a_batch_is_one_unit_and_can_be_submitted_again",
    "test_a_second_transfer_registers_nothing",
    "test_a_smaller_source_leaves_the_rest_as_it_was",
    "test_bytes_of_any_size_are_written_whatever_the_offset",
    "test_bytes_of_any_size_arrive_whatever_the_offset",
    "test_handles_that_were_dropped_by_anybody_are_refused",
    "test_handles_to_memory_that_was_freed_and_is_used_again_are_refused",
    "test_sixteen_in_flight_each_get_their_own_bytes",
    "test_the_owner_may_be_busy",
    "test_the_owner_may_hold_the_interpreters_lock",
    "test_transfers_leave_nothing_open",
]
ONLY_HERE = {
    "test_a_gibibyte_arrives",
    "test_the_report_says_whether_bytes_go_encrypted",
}
"""Tests of what only the transports here can do."""
pytestmark = [
    pytest.mark.skipif(not shared_memory.PRESENT, reason="shm and cma need Linux"),
    pytest.mark.slow,
]
MIB = 1 << 20
LARGEST = int(os.environ.get("MONARCH_TEST_LARGEST_MIB", "37")) * MIB + 5
SIZES = [1, 2, 4095, 4096, 4097, 65_537, MIB - 1, MIB + 1, LARGEST]


@pytest.fixture(scope="module", params=[*TRANSPORTS, ENCRYPTED])
def transport(request: pytest.FixtureRequest) -> str:
    return way_over(request.param)


@pytest.fixture(scope="module")
def procs(transport: str) -> Iterator[ProcMesh]:
    """Two, for all tests of a transport: once one is chosen between two processes, it stays."""
    mesh = this_host().spawn_procs({"gpus": 2}, name="workers")
    yield mesh
    mesh.stop("the tests of this transport have ended").get()


class Sides:
    """One process that has memory, and one that moves it by a given transport."""

    def __init__(self, procs: ProcMesh, transport: str) -> None:
        self.transport = transport
        holder, mover = sides_of(transport)
        self.holder: Any = procs.slice(gpus=0).spawn("holder", holder)
        self.mover: Any = procs.slice(gpus=1).spawn("mover", mover)
        self.mover.only.call_one(transport).get()
        self.made = 0

    def make(self, size: int, **options: Any) -> RDMABuffer:
        shared = self.transport == "shm"
        self.made += 1
        return self.holder.make.call_one(size, shared, **options).get()


@pytest.fixture
def sides(procs: ProcMesh, transport: str) -> Sides:
    return Sides(procs, transport)


def test_bytes_of_any_size_arrive_whatever_the_offset(sides: Sides) -> None:
    for n, size in enumerate(SIZES):
        buffer = sides.make(size, offset=n % 7, seed=n)
        assert sides.mover.read.call_one(buffer, n, n % 5).get() == sides.transport


def test_the_report_says_whether_bytes_go_encrypted(
    sides: Sides, request: pytest.FixtureRequest
) -> None:
    encrypted = request.node.callspec.params["transport"] == ENCRYPTED
    assert sides.mover.read.call_one(sides.make(MIB)).get() == sides.transport
    (said,) = sides.mover.ways.call_one().get()
    assert f"): {sides.transport}" in said
    assert (": tcp, encrypted" in said) == encrypted


def test_bytes_of_any_size_are_written_whatever_the_offset(sides: Sides) -> None:
    for n, size in enumerate(SIZES):
        buffer = sides.make(size, offset=n % 7)
        assert sides.mover.write.call_one(buffer, size, 50 + n).get() == sides.transport
        assert sides.holder.holds.call_one(n, size, 50 + n).get()


def test_a_smaller_source_leaves_the_rest_as_it_was(sides: Sides) -> None:
    buffer = sides.make(1000, seed=3)
    before = sides.holder.data.call_one(0).get()
    sides.mover.write.call_one(buffer, 10, 60).get()
    after = sides.holder.data.call_one(0).get()
    assert after[:10] != before[:10]
    assert after[10:] == before[10:]


def test_a_gibibyte_arrives(sides: Sides) -> None:
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 3 << 30:
        pytest.skip("needs 3 GiB of free memory: a gibibyte for each side, and room")
    buffer = sides.make(1 << 30, seed=5)
    assert sides.mover.read.call_one(buffer, 5, 1, timeout=600).get() == sides.transport


def test_sixteen_in_flight_each_get_their_own_bytes(sides: Sides) -> None:
    each = min(2 * MIB, LARGEST // 8)
    buffers = [sides.make(each + n, seed=n) for n in range(16)]
    assert sides.mover.read_many.call_one(buffers).get()


def test_a_batch_is_one_unit_and_can_be_submitted_again(sides: Sides) -> None:
    sources = [sides.make(1 + 997 * n, seed=n) for n in range(40)]
    sinks = [sides.make(2 * MIB) for _ in range(3)]
    assert sides.mover.batch.call_one(sources, sinks).get()
    assert all(sides.holder.holds.call_one(40 + n, 2 * MIB, 100 + n).get() for n in range(3))


def test_the_owner_may_be_busy(sides: Sides, tmp_path: Path) -> None:
    fifo = tmp_path / "release"
    os.mkfifo(fifo)
    flag, large = sides.make(1), sides.make(3 * MIB, seed=1)
    busy = sides.holder.wait_for.call_one(str(fifo), 0)
    while sides.mover.first_byte.call_one(flag).get() != 1:
        pass
    assert sides.mover.read.call_one(large, 1).get() == sides.transport
    sides.mover.write.call_one(large, 3 * MIB, 2).get()
    assert sides.mover.first_byte.call_one(flag).get() == 1  # it was busy all the while
    fifo.write_bytes(b"x")
    busy.get()
    assert sides.holder.holds.call_one(1, 3 * MIB, 2).get()


def test_the_owner_may_hold_the_interpreters_lock(sides: Sides, tmp_path: Path) -> None:
    if sides.transport == "tcp":
        pytest.skip("who serves a socket needs the lock")
    fifo = tmp_path / "release"
    os.mkfifo(fifo)
    flag, large = sides.make(1), sides.make(3 * MIB, seed=1)
    if sides.transport == "ibverbs":  # the owner is asked for a card's key when a handle is new
        sides.mover.first_byte.call_one(flag).get()
        sides.mover.first_byte.call_one(large).get()
    busy = sides.holder.hold_the_lock.call_one(str(fifo), 0)
    while sides.mover.first_byte.call_one(flag).get() != 1:
        pass
    assert sides.mover.read.call_one(large, 1).get() == sides.transport
    sides.mover.write.call_one(large, 3 * MIB, 2).get()
    assert sides.mover.first_byte.call_one(flag).get() == 1
    fifo.write_bytes(b"x")
    busy.get()
    assert sides.holder.holds.call_one(1, 3 * MIB, 2).get()


def test_a_second_transfer_registers_nothing(sides: Sides) -> None:
    buffer = sides.make(MIB)
    sides.mover.repeat.call_one(buffer, 1).get()
    before = sides.mover.facts.call_one().get(), sides.holder.registered.call_one().get()
    sides.mover.repeat.call_one(buffer, 10).get()
    assert (sides.mover.facts.call_one().get(), sides.holder.registered.call_one().get()) == before


def test_handles_to_memory_that_was_freed_and_is_used_again_are_refused(sides: Sides) -> None:
    size = 3 * MIB
    buffer = sides.make(size)
    assert sides.mover.read.call_one(buffer).get() == sides.transport
    sides.holder.refill.call_one(size).get()
    with pytest.raises(ActorError, match="its memory was freed") as raised:
        sides.mover.first_byte.call_one(buffer).get()
    assert isinstance(raised.value.exception, RDMAHandleError)
    with pytest.raises(ActorError, match="its memory was freed"):
        sides.mover.write.call_one(buffer, size, 9).get()
    assert set(sides.holder.data.call_one(0).get()) == {0xEE}


def test_handles_that_were_dropped_by_anybody_are_refused(sides: Sides) -> None:
    buffer, other = sides.make(1000), sides.make(1000, seed=1)
    sides.mover.read.call_one(buffer).get()
    sides.mover.drop.call_one(buffer).get()
    with pytest.raises(ActorError, match="it was dropped"):
        sides.mover.first_byte.call_one(buffer).get()
    assert sides.mover.read.call_one(other, 1).get() == sides.transport


def facts_grow(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - n for name, n in before.items() if after[name] > n}


def test_transfers_leave_nothing_open(sides: Sides) -> None:
    times = int(os.environ.get("MONARCH_TEST_TRANSFERS", "500"))
    buffer = sides.make(10_000)
    before = sides.mover.repeat.call_one(buffer, 2).get()
    owner = sides.holder.facts.call_one().get()
    assert facts_grow(before, sides.mover.repeat.call_one(buffer, times).get()) == {}
    assert facts_grow(owner, sides.holder.facts.call_one().get()) == {}


def test_the_other_suites_run_every_test_of_the_contract() -> None:
    tests = {name for name in globals() if name.startswith("test_")}
    own = test_the_other_suites_run_every_test_of_the_contract.__name__
    assert tests - {*__all__, own} == ONLY_HERE
