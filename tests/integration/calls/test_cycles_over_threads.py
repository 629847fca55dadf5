"""Cycles of waits that go over threads of an endpoint are told, if it waits for those threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, ProcMesh, concurrent_endpoint, endpoint, this_host
from tests.integration.gates import GateKeeper

PATIENCE_S = 60
LONGER_THAN_TWO_PROBES_S = 0.9


@pytest.fixture(scope="module")
def two(agent_errors: object) -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 2}, name="two")
    yield mesh
    mesh.stop().get(timeout=PATIENCE_S)


class Throwing(Actor):
    """Hands a ball to another and waits in a thread, which it waits for, until it is at rest."""

    def __init__(self) -> None:
        self.other: Any = None
        self.aside: threading.Thread | None = None

    @endpoint
    def meet(self, other: Any) -> None:
        self.other = other

    @endpoint
    def throw(self, way: str, times: int) -> None:
        if not times:
            return
        answer = self.other.throw.call_one(way, times - 1)
        if way == "a thread that is joined":
            raised = joined(answer.get)
            if raised is not None:
                raise raised
        elif way == "one that joins another":
            raised: BaseException | None = None

            def join() -> None:
                nonlocal raised
                raised = joined(answer.get)

            outer = joined(join)
            if raised is not None or outer is not None:
                raise raised or outer or AssertionError
        elif way == "the result of an executor":
            with ThreadPoolExecutor(1) as executor:
                executor.submit(answer.get).result()
        elif way == "the map of an executor":
            with ThreadPoolExecutor(2) as executor:
                list(executor.map(lambda future: future.get(), [answer]))
        elif way == "the end of an executor":
            with ThreadPoolExecutor(1) as executor:
                done = executor.submit(answer.get)
            done.result()
        elif way == "asyncio.run":
            asyncio.run(asyncio.to_thread(answer.get))

    @endpoint
    def throw_and_look(self) -> str:
        """Have a thread wait for a while, again and again, until that says why nothing comes."""
        said: list[str] = []
        answer = self.other.throw.call_one("a thread that is joined", 1)

        def look() -> None:
            while not said:
                try:
                    answer.get(timeout=0.5)
                except TimeoutError as late:
                    if "none can come" in str(late):
                        said.append(str(late))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return said[0]

    @endpoint
    def throw_aside(self, gate: Any) -> None:
        """The same in a thread that this endpoint does not wait for, while it does other things."""
        answer = self.other.call_back.call_one()
        self.aside = threading.Thread(target=answer.get)
        self.aside.start()
        gate.pass_through()

    @endpoint
    def throw_and_join_for_a_while(self, gate: Any) -> bool:
        """In one that it joins for a time."""
        answer = self.other.call_back.call_one()
        self.aside = threading.Thread(target=answer.get)
        self.aside.start()
        self.aside.join(LONGER_THAN_TWO_PROBES_S)
        gate.pass_through()
        return self.aside.is_alive()

    @endpoint
    def call_back(self) -> None:
        self.other.greet.call_one().get()

    @endpoint
    def greet(self) -> str:
        return "hello"

    @endpoint
    def at_rest(self) -> None:
        """What was thrown aside has come back."""
        assert self.aside is not None
        self.aside.join(PATIENCE_S)
        assert not self.aside.is_alive()


class AsyncThrowing(Actor):
    """The same on an event loop, which goes on meanwhile."""

    def __init__(self) -> None:
        self.other: Any = None

    @endpoint
    async def meet(self, other: Any) -> None:
        self.other = other

    @endpoint
    async def throw(self, way: str, times: int) -> None:
        if not times:
            return
        answer = self.other.throw.call_one(way, times - 1)
        if way == "to_thread":
            await asyncio.to_thread(answer.get)
        elif way == "several in threads":
            await asyncio.gather(asyncio.to_thread(answer.get), asyncio.to_thread(str))
        else:
            raised = joined(answer.get)
            if raised is not None:
                raise raised

    @concurrent_endpoint
    async def overlap(self, times: int, gate: Any) -> int:
        if not times:
            await asyncio.to_thread(gate.pass_through)
            return 0
        return 1 + await asyncio.to_thread(self.other.overlap.call_one(times - 1, gate).get)


def joined(work: Any) -> BaseException | None:
    """Run that in a thread and join it: what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def partners(procs: ProcMesh, kind: type[Any]) -> Any:
    """An actor that knows another one, which knows it."""
    mesh = procs.spawn("throwing", kind)
    one, other = mesh.slice(gpus=0), mesh.slice(gpus=1)
    one.meet.call_one(other).get(timeout=PATIENCE_S)
    other.meet.call_one(one).get(timeout=PATIENCE_S)
    return one


WAYS = [
    (Throwing, "a thread that is joined"),
    (Throwing, "one that joins another"),
    (Throwing, "the result of an executor"),
    (Throwing, "the map of an executor"),
    (Throwing, "the end of an executor"),
    (Throwing, "asyncio.run"),
    (AsyncThrowing, "to_thread"),
    (AsyncThrowing, "several in threads"),
    (AsyncThrowing, "a thread that is joined"),
]


@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_a_cycle_over_a_thread_that_its_endpoint_waits_for_is_told(
    two: ProcMesh, kind: type[Any], way: str
) -> None:
    one = partners(two, kind)
    with pytest.raises(ActorError, match="DeadlockError") as raised:
        one.throw.call_one(way, 2).get(timeout=PATIENCE_S)
    for rank in range(2):
        assert f"{kind.__name__}.throw on two[gpus={rank}]" in str(raised.value)
    one.throw.call_one(way, 1).get(timeout=PATIENCE_S)  # it is usable afterwards


def test_a_wait_of_a_thread_with_a_time_out_says_its_cycle(two: ProcMesh) -> None:
    said = partners(two, Throwing).throw_and_look.call_one().get(timeout=PATIENCE_S)
    assert said.startswith("no answer within 0.5 s; none can come while this waits: ")
    assert "Throwing.throw_and_look on two[gpus=0] waits for Throwing.throw on two[gpus=1]" in said


@pytest.mark.parametrize("how", ["throw_aside", "throw_and_join_for_a_while"])
def test_a_thread_that_its_endpoint_does_not_wait_for_may_wait_for_that_one(
    two: ProcMesh, gate: GateKeeper, how: str
) -> None:
    one = partners(two, Throwing)
    answer = getattr(one, how).call_one(gate.gate)
    gate.wait_entered()
    with pytest.raises(TimeoutError):
        answer.get(timeout=LONGER_THAN_TWO_PROBES_S)
    gate.open()
    assert answer.get(timeout=PATIENCE_S) in (None, True)  # True: the time was up, and no error
    one.at_rest.call_one().get(timeout=PATIENCE_S)


def test_threads_beside_calls_that_overlap_hold_up_nobody(two: ProcMesh, gate: GateKeeper) -> None:
    one = partners(two, AsyncThrowing)
    answer = one.overlap.call_one(4, gate.gate)
    gate.wait_entered()
    with pytest.raises(TimeoutError):
        answer.get(timeout=LONGER_THAN_TWO_PROBES_S)
    gate.open()
    assert answer.get(timeout=PATIENCE_S) == 4
