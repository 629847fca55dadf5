"""Cycles of waits are told however an endpoint waits; what only looks like one is left alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    ProcMesh,
    concurrent_endpoint,
    context,
    endpoint,
    this_host,
)
from tests.integration.gates import GateKeeper

PATIENCE_S = 60


@pytest.fixture(scope="module")
def three(agent_errors: object) -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 3}, name="three")
    yield mesh
    mesh.stop().get(timeout=PATIENCE_S)


class Throwing(Actor):
    """Hands a ball to others and waits, in one way or another, for it to come to rest."""

    def __init__(self) -> None:
        self.others: Any = None

    @endpoint
    def meet(self, others: Any) -> None:
        self.others = others

    @endpoint
    def throw(self, way: str, times: int) -> None:
        if not times:
            return
        ball = self.others.throw
        if way == "call":
            ball.call(way, times - 1).get()
        elif way == "stream":
            for answer in ball.stream(way, times - 1):
                answer.get()
        elif way == "choose":
            ball.choose(way, times - 1).result()
        elif way == "asyncio.run":
            asyncio.run(_awaited(ball.call(way, times - 1)))
        elif way == "asyncio.run of several":
            asyncio.run(_gathered(ball.stream(way, times - 1)))

    @endpoint
    def throw_and_look(self) -> str:
        """Wait for a while, again and again, until that says why nothing comes."""
        answer = self.others.throw.call("call", 1)
        while True:
            try:
                answer.get(timeout=0.5)
            except TimeoutError as late:
                if "none can come" in str(late):
                    return str(late)


async def _awaited(answer: Any) -> None:
    await answer


async def _gathered(answers: Any) -> None:
    await asyncio.gather(*answers)


class AsyncThrowing(Actor):
    """The same on an event loop."""

    def __init__(self) -> None:
        self.others: Any = None

    @endpoint
    async def meet(self, others: Any) -> None:
        self.others = others

    @endpoint
    async def throw(self, way: str, times: int) -> None:
        if not times:
            return
        answer = self.others.throw.call(way, times - 1)
        if way == "await":
            await answer
        elif way == "gather":
            await asyncio.gather(_awaited(answer), asyncio.sleep(0))
        elif way == "task":
            await asyncio.create_task(_awaited(answer))
        elif way == "task that is awaited later":
            task = asyncio.create_task(_awaited(answer))
            await asyncio.sleep(0.3)  # longer than until the first probe
            await task
        elif way == "group":
            async with asyncio.TaskGroup() as group:  # pyright: ignore[reportAttributeAccessIssue]
                group.create_task(_awaited(answer))
        elif way == "shield":
            await asyncio.shield(answer.as_asyncio())
        else:
            await answer.as_asyncio()


def partners(procs: ProcMesh, first: type[Any], second: type[Any]) -> Any:
    """An actor that throws to two others, which throw back to it."""
    one = procs.slice(gpus=0).spawn("one", first)
    others = procs.slice(gpus=slice(1, 3)).spawn("others", second)
    one.meet.call(others).get(timeout=PATIENCE_S)
    others.meet.call(one).get(timeout=PATIENCE_S)
    return one


def told_of_a_cycle(error: BaseException | None) -> bool:
    """Whether somewhere in it there is a DeadlockError."""
    if error is None:
        return False
    within: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    around = getattr(error, "exception", None)
    return (
        type(error).__name__ == "DeadlockError"
        or "DeadlockError" in str(error)
        or told_of_a_cycle(around)
        or any(told_of_a_cycle(one) for one in within)
    )


WAYS = [
    *[(Throwing, way) for way in ("call", "stream", "choose")],
    *[(Throwing, way) for way in ("asyncio.run", "asyncio.run of several")],
    *[(AsyncThrowing, way) for way in ("await", "gather", "task", "task that is awaited later")],
    *[(AsyncThrowing, way) for way in ("shield", "as_asyncio")],
    *([(AsyncThrowing, "group")] if sys.version_info >= (3, 11) else []),
]


@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_a_cycle_over_several_ranks_is_told_however_its_actors_wait(
    three: ProcMesh, kind: type[Any], way: str
) -> None:
    one = partners(three, kind, kind)
    with pytest.raises(ActorError) as raised:
        one.throw.call_one(way, 2).get(timeout=PATIENCE_S)
    assert told_of_a_cycle(raised.value)
    one.throw.call_one(way, 1).get(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("first", "second"), [(Throwing, AsyncThrowing), (AsyncThrowing, Throwing)]
)
def test_a_cycle_of_both_kinds_is_told(
    three: ProcMesh, first: type[Any], second: type[Any]
) -> None:
    one = partners(three, first, second)
    with pytest.raises(ActorError) as raised:
        one.throw.call_one("call", 2).get(timeout=PATIENCE_S)
    assert told_of_a_cycle(raised.value)


def test_a_wait_with_a_time_out_is_told_by_that_of_its_cycle_and_can_go_on(
    three: ProcMesh,
) -> None:
    one = partners(three, Throwing, Throwing)
    said = one.throw_and_look.call_one().get(timeout=PATIENCE_S)
    assert said.startswith("no answer within 0.5 s; none can come while this waits: ")
    assert (
        "Throwing.throw_and_look on three[gpus=0] waits for Throwing.throw on three[gpus=" in said
    )


class Friend(Actor):
    """Is asked twice by who waits for the first answer; only the second needs that one back."""

    def __init__(self) -> None:
        self.asking: Any = None

    @endpoint
    async def meet(self, asking: Any) -> None:
        self.asking = asking

    @concurrent_endpoint
    async def overlap(self, gate: Any) -> str:
        await asyncio.to_thread(gate.pass_through)
        return "let go"

    @endpoint
    async def call_back(self) -> str:
        return await self.asking.greet.call_one()


class Asking(Actor):
    """Waits for a call that overlaps with one which waits for it."""

    @endpoint
    def greet(self) -> str:
        return "hello"

    @endpoint
    def ask(self, friend: Any, gate: Any, answers: Any) -> str:
        first = friend.overlap.call_one(gate)
        friend.call_back.broadcast()
        answers.send("asked")
        return first.get()


def test_a_call_that_overlaps_is_not_held_up_by_what_another_waits_for(
    three: ProcMesh, gate: GateKeeper
) -> None:
    friend = three.slice(gpus=0).spawn("friend", Friend)
    asking = three.slice(gpus=1).spawn("asking", Asking)
    friend.meet.call_one(asking).get(timeout=PATIENCE_S)
    port, receiver = Channel[str].open()
    answer = asking.ask.call_one(friend, gate.gate, port)
    receiver.recv().get(timeout=PATIENCE_S)
    gate.wait_entered()
    with pytest.raises(TimeoutError):
        answer.get(timeout=0.9)  # two probes long
    gate.open()
    assert answer.get(timeout=PATIENCE_S) == "let go"
    friend.meet.call_one(None).get(timeout=PATIENCE_S)  # it lives


class Delegate(Actor):
    """Answers through a port that it has given away, while it waits for who asked."""

    def __init__(self, asking: Any, other: Any) -> None:
        self.asking, self.other = asking, other

    @endpoint(explicit_response_port=True)
    def ask(self, port: Any, gate: Any) -> None:
        self.other.answer.broadcast(port, gate)
        self.asking.greet.call_one().get()


class Other(Actor):
    @endpoint
    def answer(self, port: Any, gate: Any) -> None:
        gate.pass_through()
        port.send("by somebody else")


class Patient(Actor):
    @endpoint
    def greet(self) -> str:
        return context().actor_instance.name

    @endpoint
    def ask(self, delegate: Any, gate: Any) -> str:
        return delegate.ask.call_one(gate).get()


def test_an_answer_that_may_come_from_elsewhere_is_waited_for(
    three: ProcMesh, gate: GateKeeper
) -> None:
    patient = three.slice(gpus=0).spawn("patient", Patient)
    other = three.slice(gpus=1).spawn("other", Other)
    delegate = three.slice(gpus=2).spawn("delegate", Delegate, patient, other)
    answer = patient.ask.call_one(delegate, gate.gate)
    gate.wait_entered()
    with pytest.raises(TimeoutError):
        answer.get(timeout=0.9)  # two probes long
    gate.open()
    assert answer.get(timeout=PATIENCE_S) == "by somebody else"
