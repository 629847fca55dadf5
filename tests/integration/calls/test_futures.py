"""Futures: looked at any number of times, from any thread or loop; time-outs lose nothing."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import ActorError, Future, ProcMesh
from tests.integration.failing_actors import Failing
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Echo, Recorder


def test_a_future_may_be_looked_at_again_and_again(four: ProcMesh) -> None:
    answer = four.spawn("echo", Echo).slice(gpus=0).same.call_one([1])
    first = answer.get()
    assert first == [1]
    assert answer.get() is first
    assert answer.result() is first
    assert answer.exception() is None
    assert repr(answer) == "<Future done>"


def test_an_error_may_be_raised_again_and_again(four: ProcMesh) -> None:
    answer = four.spawn("failing", Failing).raise_value_error.call()
    errors: list[ActorError] = []
    for _ in range(3):
        with pytest.raises(ActorError) as caught:
            answer.get()
        errors.append(caught.value)
    assert errors[0] is errors[1] is errors[2]
    assert answer.exception() is errors[0]
    assert repr(answer) == "<Future failed>"


def test_many_threads_may_wait_for_one_future(four: ProcMesh, gate: GateKeeper) -> None:
    echo = four.spawn("echo", Echo)
    answer = echo.slice(gpus=1).pass_gate.call_one(gate.gate, {"k": 1})
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(answer.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.wait_entered()
    gate.open()
    for thread in threads:
        thread.join(60)
    assert got == [{"k": 1}] * 8
    assert all(value is got[0] for value in got)


def test_many_threads_may_call_at_once(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    wrong: list[Any] = []

    def work(thread: int) -> None:
        for number in range(100):
            value = (thread, number)
            if echo.same.call(value).get().values() != [value] * 4:
                wrong.append(value)
            rank = number % 4
            if echo.slice(gpus=rank).same.call_one(value).get() != value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_a_future_made_in_one_thread_is_read_in_another(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    answers = [echo.same.call(n) for n in range(20)]
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(a.get().values() for a in answers))
    thread.start()
    thread.join(60)
    assert got == [[n] * 4 for n in range(20)]


def test_a_time_out_consumes_nothing(four: ProcMesh, gate: GateKeeper) -> None:
    echo = four.spawn("echo", Echo)
    answer = echo.slice(gpus=0).pass_gate.call_one(gate.gate, "late")
    gate.wait_entered()
    for timeout in (0, 0.0, 0.01):
        with pytest.raises(TimeoutError) as late:
            answer.get(timeout=timeout)
        assert str(late.value) == (
            f"no answer within {timeout} s from Echo.pass_gate on {four.name}[gpus=0]; "
            "the call goes on, ask again"
        )
    with pytest.raises(TimeoutError):
        answer.exception(timeout=0)
    assert repr(answer) == "<Future pending>"
    gate.open()
    assert answer.get(timeout=60) == "late"
    assert answer.get(timeout=0) == "late"


def test_a_time_out_says_which_ranks_have_not_answered(four: ProcMesh, gate: GateKeeper) -> None:
    echo = four.spawn("echo", Echo)
    held = [echo.slice(gpus=rank).pass_gate.call_one(gate.gate) for rank in (3, 0, 1)]
    answer = echo.same.call(5)
    several = echo.slice(gpus=slice(1, 4)).same.call(6)
    parts = echo.same.stream(7)
    free = echo.slice(gpus=2)
    free.same.call_one(0).get()  # behind what came before
    next(iter(parts)).get()

    def late(future: Future[Any]) -> str:
        with pytest.raises(TimeoutError) as raised:
            future.get(timeout=0.01)
        return str(raised.value).partition(" from ")[2].partition(";")[0]

    assert late(answer) == f"Echo.same on {four.name}, gpus=0..1, gpus=3 (3 of 4 ranks)"
    assert late(several) == f"Echo.same on {four.name}, gpus=1, gpus=3 (2 of 3 ranks)"
    assert late(next(iter(parts))) == f"Echo.same on {four.name}, gpus=0..1, gpus=3 (3 of 4 ranks)"
    assert late(held[0]) == f"Echo.pass_gate on {four.name}[gpus=3]"
    both = echo.slice(gpus=slice(0, 2)).same.call(8)
    assert late(both) == f"Echo.same on {four.name} (all 2 ranks)"
    gate.open(len(held))
    assert answer.get(timeout=60).values() == [5] * 4


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, -math.inf])
def test_a_time_out_that_is_none_is_refused_whether_the_answer_is_there_or_not(
    four: ProcMesh, gate: GateKeeper, timeout: float
) -> None:
    answer = four.spawn("echo", Echo).slice(gpus=0).pass_gate.call_one(gate.gate)
    with pytest.raises(ValueError, match="timeout="):
        answer.get(timeout=timeout)
    gate.open()
    assert answer.get() is None
    with pytest.raises(ValueError, match="timeout="):
        answer.get(timeout=timeout)


def test_futures_can_be_awaited_in_any_number_of_tasks(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)

    async def main() -> list[Any]:
        answer = echo.same.call("x")

        async def look() -> Any:
            return (await answer).values()

        found = await asyncio.gather(*(look() for _ in range(5)))
        return [*found, (await answer).values()]

    assert asyncio.run(main()) == [["x"] * 4] * 6


def test_many_awaited_calls_are_in_flight_at_once(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)

    async def main() -> list[Any]:
        return list(await asyncio.gather(*(echo.slice(gpus=n % 4).same.call_one(n)
                                           for n in range(400))))  # fmt: skip

    assert asyncio.run(main()) == list(range(400))


def test_one_future_is_awaited_in_two_loops_and_read_in_a_third_thread(
    four: ProcMesh, gate: GateKeeper
) -> None:
    answer = four.spawn("echo", Echo).slice(gpus=2).pass_gate.call_one(gate.gate, 5)
    got: list[Any] = []

    async def main() -> None:
        got.append(await answer)

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
    threads.append(threading.Thread(target=lambda: got.append(answer.get())))
    for thread in threads:
        thread.start()
    gate.wait_entered()
    gate.open()
    for thread in threads:
        thread.join(60)
    assert got == [5, 5, 5]


def test_cancelling_one_who_awaits_leaves_the_others_and_the_call(
    four: ProcMesh, gate: GateKeeper
) -> None:
    recorder = four.slice(gpus=0).spawn("recorder", Recorder)
    echo = four.slice(gpus=0).spawn("echo", Echo)
    answer = echo.pass_gate.call_one(gate.gate, "kept")

    async def look() -> Any:
        return await answer

    async def main() -> Any:
        given_up, patient = asyncio.ensure_future(look()), asyncio.ensure_future(look())
        mirror = answer.as_asyncio()
        await asyncio.to_thread(gate.wait_entered)
        given_up.cancel()
        mirror.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(look(), 0.01)
        gate.open()
        return await patient, await answer.as_asyncio()

    assert asyncio.run(main()) == ("kept", "kept")
    assert answer.get() == "kept"
    assert recorder.note.call_one(1).get() == 1


def test_an_error_is_raised_from_await_too(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)

    async def main() -> None:
        with pytest.raises(ActorError, match="a bad value"):
            await failing.raise_value_error.call()
        with pytest.raises(ActorError, match="a bad value"):
            await failing.raise_value_error.call().as_asyncio()
        assert (await failing.fine.call()).values() == ["fine"] * 4

    asyncio.run(main())


def test_a_get_that_blocks_a_running_loop_works_and_warns(four: ProcMesh, gate: GateKeeper) -> None:
    echo = four.spawn("echo", Echo)

    async def main() -> Any:
        answer = echo.pass_gate.call(gate.gate, 1)
        with (
            pytest.warns(RuntimeWarning, match=r"blocks the running event loop; `await`"),
            pytest.raises(TimeoutError),
        ):
            answer.get(timeout=0)
        gate.open(4)
        return (await answer).values()

    assert asyncio.run(main()) == [1, 1, 1, 1]


def test_a_loop_that_ends_before_the_answer_comes_harms_nobody(
    four: ProcMesh, gate: GateKeeper
) -> None:
    answer: Future[Any] = (
        four.spawn("echo", Echo).slice(gpus=0).pass_gate.call_one(gate.gate, "here")
    )

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(answer.as_asyncio(), 0.01)

    asyncio.run(main())
    gate.open()
    assert answer.get(timeout=60) == "here"


def test_a_time_out_without_end_is_none(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo).slice(gpus=0)
    assert echo.same.call_one(1).get(timeout=math.inf) == 1
    assert echo.same.call_one(2).get(timeout=1e300) == 2


def test_a_wait_on_a_stack_that_is_nearly_full_loses_no_answer(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo).slice(gpus=0)

    def deeper(levels: int, then: Callable[[], object]) -> object:
        return then() if not levels else deeper(levels - 1, then)

    here = len(inspect.stack(0))
    ways = set[str]()
    for spare in range(0, 200, 2):
        future = echo.same.call_one(spare)
        try:
            deeper(sys.getrecursionlimit() - here - spare, future.get)
            ways.add("got")
        except RecursionError:
            ways.add("no room")
        assert future.get(timeout=60) == spare
    assert ways == {"got", "no room"}


def test_who_forgets_to_get_is_told_so(four: ProcMesh) -> None:
    answer: Any = four.spawn("echo", Echo).rank.call()
    with pytest.raises(TypeError, match=r"a Future has no item 0: .* get\(\) it, or await it,"):
        answer[0]
    with pytest.raises(AttributeError, match=r"no attribute 'values': .*\.get\(\)\.values`"):
        answer.values()
    # Who asks what an object can do is given no advice, and no answer either.
    assert not hasattr(answer, "_repr_html_")
    assert not hasattr(answer, "source")
    assert answer.get(timeout=60).values() == [0, 1, 2, 3]
