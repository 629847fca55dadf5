"""`as_completed` yields futures as they are done."""

from __future__ import annotations

import asyncio

import pytest

from monarch.actor import Actor, ActorError, Future, ProcMesh, as_completed, endpoint
from tests.integration.gates import Gate, GateKeeper
from tests.integration.mapped import pass_gate


class Waits(Actor):
    """Answers at a gate, or at once."""

    @endpoint
    def wait(self, gate: Gate, number: int) -> int:
        return pass_gate((gate, number))

    @endpoint
    def answer(self, number: int) -> int:
        return number

    @endpoint
    def fail(self) -> None:
        raise ValueError("no")


def test_the_future_that_is_done_first_comes_first(four: ProcMesh, gate: GateKeeper) -> None:
    waits = four.spawn("waits", Waits)
    late = waits.slice(gpus=0).wait.call_one(gate.gate, 0)
    soon = waits.slice(gpus=1).answer.call_one(1)
    order = as_completed([late, soon])
    first = next(order)
    assert first is soon
    gate.open()
    assert [future.get() for future in order] == [0]


def test_a_future_comes_once_and_one_with_an_error_comes_too(four: ProcMesh) -> None:
    waits = four.spawn("waits", Waits)
    failed = waits.slice(gpus=0).fail.call_one()
    done = Future.of(3)
    found = list(as_completed([failed, done, failed, done]))
    assert {id(future) for future in found} == {id(failed), id(done)}
    with pytest.raises(ActorError):
        failed.get()
    assert list(as_completed([])) == []


def test_futures_can_be_awaited_as_they_are_done(four: ProcMesh) -> None:
    waits = four.spawn("waits", Waits)

    async def main() -> list[int]:
        calls = [waits.slice(gpus=rank).answer.call_one(rank) for rank in range(4)]
        return [await future async for future in as_completed(calls, timeout=60)]

    assert sorted(asyncio.run(main())) == [0, 1, 2, 3]


def test_a_time_out_says_how_many_are_left_and_ends_no_call(
    four: ProcMesh, gate: GateKeeper
) -> None:
    waits = four.spawn("waits", Waits)
    calls = [waits.slice(gpus=0).wait.call_one(gate.gate, 0), Future.of(1)]
    order = as_completed(calls, timeout=0.05)
    assert next(order).get() == 1
    text = "as_completed: 1 of 2 futures are not done within 0.05 s; their calls go on"
    with pytest.raises(TimeoutError) as raised:
        next(order)
    assert str(raised.value) == text

    async def main() -> None:
        async for _ in as_completed(calls[:1], timeout=0.05):
            pass

    with pytest.raises(TimeoutError, match=r"1 of 1 futures are not done within 0\.05 s"):
        asyncio.run(main())
    gate.open()
    assert calls[0].get() == 0


def test_bad_arguments_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^as_completed: timeout=0: give seconds above 0, or"):
        as_completed([], timeout=0)
    with pytest.raises(TypeError, match=r"^as_completed: number 1 is of type int; give"):
        as_completed([Future.of(1), 3])  # pyright: ignore[reportArgumentType]
