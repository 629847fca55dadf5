"""Sides that die: a typed error for who lives, and nothing left of who has died."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from monarch._src.system import shared_memory
from monarch.actor import ActorError, ProcMesh, SupervisionError
from monarch.rdma import RDMAOwnerLostError
from tests.conftest import Faults
from tests.integration.rdma.parties import ENCRYPTED, TRANSPORTS, sides_of, way_over

Spawn = Callable[..., ProcMesh]
pytestmark = [
    pytest.mark.skipif(not shared_memory.PRESENT, reason="shm and cma need Linux"),
    pytest.mark.slow,
]
MIB = 1 << 20


@pytest.fixture(params=[*TRANSPORTS, ENCRYPTED])
def transport(request: pytest.FixtureRequest) -> str:
    return way_over(request.param)


def sides(spawn_procs: Spawn, transport: str) -> tuple[Any, Any]:
    has, moves = sides_of(transport)
    holder: Any = spawn_procs({"gpus": 1}, name="owners").spawn("holder", has)
    mover: Any = spawn_procs({"gpus": 1}, name="movers").spawn("mover", moves)
    mover.only.call_one(transport).get()
    return holder, mover


@pytest.mark.parametrize("way", ["read", "write"])
def test_an_owner_that_dies_half_way_is_a_typed_error(
    spawn_procs: Spawn, transport: str, way: str, faults: Faults
) -> None:
    holder, mover = sides(spawn_procs, transport)
    buffer = holder.make.call_one(3 * MIB, transport == "shm").get()
    with pytest.raises(ActorError) as raised:
        mover.kill_half_way.call_one(buffer, "owner", way).get()
    error = raised.value.exception
    assert isinstance(error, RDMAOwnerLostError)
    assert error.transport == transport
    assert 0 < error.bytes_done < error.size == 3 * MIB
    assert f"a {way} of 3,145,728 bytes" in str(error)
    assert "of holder (pid" in str(error) or "of holder[gpus=0] (pid" in str(error)
    with pytest.raises(ActorError) as raised:  # and so is every later use
        mover.first_byte.call_one(buffer).get()
    assert isinstance(raised.value.exception, RDMAOwnerLostError)
    faults.take()


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_receiver_that_dies_half_way_costs_the_owner_nothing(
    spawn_procs: Spawn, transport: str, way: str, faults: Faults
) -> None:
    holder, mover = sides(spawn_procs, transport)
    buffer = holder.make.call_one(3 * MIB, transport == "shm").get()
    with pytest.raises(SupervisionError):
        mover.kill_half_way.call_one(buffer, "ourselves", way).get()
    other: Any = spawn_procs({"gpus": 1}, name="others").spawn("mover", sides_of(transport)[1])
    other.only.call_one(transport).get()
    other.write.call_one(buffer, 3 * MIB, 4).get()
    assert holder.holds.call_one(0, 3 * MIB, 4).get()
    other.drop.call_one(buffer).get()
    faults.take()


def test_who_dies_with_a_region_locked_keeps_nobody_from_dropping_it(
    spawn_procs: Spawn, faults: Faults
) -> None:
    holder, mover = sides(spawn_procs, "cma")
    buffer = holder.make.call_one(3 * MIB, False).get()
    with pytest.raises(SupervisionError):
        mover.die_while_writing.call_one(buffer).get()
    holder.forget.call_one().get()
    faults.take()


def test_a_handle_outlives_its_owner_as_an_error(spawn_procs: Spawn, transport: str) -> None:
    _, mover = sides(spawn_procs, transport)
    procs = spawn_procs({"gpus": 1}, name="brief")
    brief: Any = procs.spawn("brief", sides_of(transport)[0])
    buffer = brief.make.call_one(1000, transport == "shm").get()
    procs.stop().get()
    with pytest.raises(ActorError) as raised:
        mover.first_byte.call_one(buffer).get()
    assert isinstance(raised.value.exception, RDMAOwnerLostError)
    mover.drop.call_one(buffer).get()  # nothing to drop, and no error


def test_owners_that_die_leave_nothing_with_who_read_them(
    spawn_procs: Spawn, transport: str, faults: Faults
) -> None:
    """Every second time by SIGKILL, otherwise in order; who stops a mesh has settled its deaths."""
    rounds, each = divmod(int(os.environ.get("MONARCH_TEST_OWNER_DEATHS", "12")), 6)[0], 6
    _, mover = sides(spawn_procs, transport)
    before: dict[str, int] | None = None
    for turn in range(rounds + 1):
        procs = spawn_procs({"gpus": each}, name="brief")
        holders: Any = procs.spawn("brief", sides_of(transport)[0])
        made = holders.make.call(5000, transport == "shm").get()
        buffers = [buffer for _, buffer in made.items()]
        assert mover.read_each.call_one(buffers).get() == 0
        if turn % 2:
            for buffer in buffers:
                os.kill(buffer.handle().owner.pid, signal.SIGKILL)
        procs.stop().get()
        assert mover.read_each.call_one(buffers).get() == each
        if before is None:
            before = mover.facts.call_one().get()
    assert before is not None
    deadline = 600
    while deadline and _grown(before, mover.facts.call_one().get()):
        deadline -= 1  # what is open goes on another thread, once nobody uses it
    assert _grown(before, mover.facts.call_one().get()) == {}


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - n for name, n in before.items() if after[name] > n}
