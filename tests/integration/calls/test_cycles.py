"""Actors that wait for each other get an error that says which actor waits for which."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
)
from tests.conftest import Faults
from tests.integration.gates import GateKeeper


class Passing(Actor):
    """Hands a ball on to the next actor and waits for it to come to rest."""

    def __init__(self) -> None:
        self.next: Any = None

    @endpoint
    def meet(self, other: Any) -> None:
        self.next = other

    @endpoint
    def throw(self, times: int) -> int:
        return 1 + self.next.throw.call_one(times - 1).get() if times else 0

    @endpoint
    def hold(self, gate: Any) -> str:
        gate.pass_through()
        return "let go"

    @endpoint
    def watch(self, gate: Any) -> str:
        return self.next.hold.call_one(gate).get()


class AsyncPassing(Actor):
    """The same on an event loop."""

    def __init__(self) -> None:
        self.next: Any = None

    @endpoint
    async def meet(self, other: Any) -> None:
        self.next = other

    @endpoint
    async def throw(self, times: int) -> int:
        return 1 + await self.next.throw.call_one(times - 1) if times else 0


class BlockingPassing(Actor):
    """On an event loop too, which it blocks."""

    def __init__(self) -> None:
        self.next: Any = None

    @endpoint
    async def meet(self, other: Any) -> None:
        self.next = other

    @endpoint
    async def throw(self, times: int) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return 1 + self.next.throw.call_one(times - 1).get() if times else 0


class OverlappingPassing(Actor):
    """Its calls overlap, so it can be called back."""

    def __init__(self) -> None:
        self.next: Any = None

    @endpoint
    async def meet(self, other: Any) -> None:
        self.next = other

    @concurrent_endpoint
    async def throw(self, times: int) -> int:
        return 1 + await self.next.throw.call_one(times - 1) if times else 0

    @concurrent_endpoint
    async def throw_from_a_thread(self, times: int, gate: Any) -> int:
        if not times:
            await asyncio.to_thread(gate.pass_through)
            return 0
        future = self.next.throw_from_a_thread.call_one(times - 1, gate)
        return 1 + await asyncio.to_thread(future.get)


class Asking(Actor):
    """Waits for another before it is there."""

    def __init__(self, other: Any, gate: Any) -> None:
        gate.pass_through()
        other.watch.call_one(None).get()

    @endpoint
    def hold(self, gate: Any) -> str:
        return "never"


def ring(procs: ProcMesh, kind: type[Any], size: int) -> list[Any]:
    """Actors each of which knows the next, the last one the first."""
    mesh = procs.spawn("ring", kind)
    members = [mesh.slice(gpus=i) for i in range(size)]
    for i, member in enumerate(members):
        member.meet.call_one(members[(i + 1) % size]).get(timeout=60)
    return members


def caught(call: Callable[[], Any]) -> str:
    with pytest.raises(ActorError, match="DeadlockError") as raised:
        call().get(timeout=60)
    return str(raised.value)


@pytest.mark.parametrize("kind", [Passing, AsyncPassing, BlockingPassing])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_ring_that_waits_for_itself_is_told_so(
    four: ProcMesh, kind: type[Any], size: int
) -> None:
    members = ring(four, kind, size)
    said = caught(lambda: members[0].throw.call_one(size + 1))
    for rank in range(size):
        assert f"{kind.__name__}.throw on workers[gpus={rank}]" in said
    assert "none can proceed" in said


@pytest.mark.parametrize("kind", [Passing, AsyncPassing])
def test_the_ring_is_usable_afterwards(four: ProcMesh, kind: type[Any]) -> None:
    members = ring(four, kind, 3)
    for _ in range(3):
        caught(lambda: members[0].throw.call_one(3))
        assert members[1].throw.call_one(2).get(timeout=60) == 2


def test_a_constructor_that_waits_for_itself_is_told_so(
    four: ProcMesh, gate: GateKeeper, faults: Faults
) -> None:
    passing = four.slice(gpus=0).spawn("passing", Passing)
    asking = four.slice(gpus=1).spawn("asking", Asking, passing, gate.gate)
    passing.meet.call_one(asking).get(timeout=60)
    gate.open()
    with pytest.raises(SupervisionError, match="DeadlockError") as raised:
        asking.hold.call_one(None).get(timeout=60)
    # Either of the two may be the one that is told, and then the other hears of it.
    waits = ["Asking.__init__ on workers[gpus=1]", "Passing.watch on workers[gpus=0]"]
    said = str(raised.value)
    assert " waits for ".join(waits) in said or " waits for ".join(reversed(waits)) in said
    faults.take_ranks({1})


def test_two_that_call_each_other_from_calls_of_others_are_told(four: ProcMesh) -> None:
    """Neither call is nested in the other: only the waits of both show the cycle."""
    one, two = ring(four, Passing, 2)
    outcomes: list[int | str] = []
    for future in (one.throw.call_one(1), two.throw.call_one(1)):
        try:
            outcomes.append(future.get(timeout=60))
        except ActorError as error:
            outcomes.append(str(error))
    for outcome in outcomes:  # one may have been done before the other began
        assert outcome == 1 or "DeadlockError" in str(outcome)


def test_a_ring_whose_calls_overlap_goes_round(four: ProcMesh) -> None:
    members = ring(four, OverlappingPassing, 3)
    assert members[0].throw.call_one(10).get(timeout=60) == 10


def test_a_ring_that_waits_in_threads_beside_its_loops_goes_round(
    four: ProcMesh, gate: GateKeeper
) -> None:
    members = ring(four, OverlappingPassing, 2)
    answer = members[0].throw_from_a_thread.call_one(4, gate.gate)
    gate.wait_entered()
    with pytest.raises(TimeoutError):
        answer.get(timeout=0.6)  # longer than a probe takes
    gate.open()
    assert answer.get(timeout=60) == 4


def test_a_long_wait_for_somebody_busy_is_no_cycle(four: ProcMesh, gate: GateKeeper) -> None:
    one, _two = ring(four, Passing, 2)
    watching = one.watch.call_one(gate.gate)
    gate.wait_entered(1)
    with pytest.raises(TimeoutError):
        watching.get(timeout=0.6)  # longer than a probe takes
    gate.open()
    assert watching.get(timeout=60) == "let go"
