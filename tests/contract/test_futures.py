"""Futures: the rest of what tests/integration/calls/test_futures.py shows."""

from __future__ import annotations

import asyncio
import pickle
import sys
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    Channel,
    Future,
    Port,
    PortReceiver,
    ProcMesh,
    ValueMesh,
    endpoint,
    returns_future,
)
from monarch.observe import call_of, cancel_calls, open_calls
from tests.integration.failing_actors import Failing
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Echo
from tests.notebook.kernel import running_kernel


def test_result_and_exception_take_a_time_out_that_consumes_nothing(
    four: ProcMesh, gate: GateKeeper
) -> None:
    answer = four.spawn("echo", Echo).slice(gpus=0).pass_gate.call_one(gate.gate, 5)
    for look in (answer.get, answer.result, answer.exception):
        with pytest.raises(TimeoutError):
            look(timeout=0.01)
        with pytest.raises(ValueError, match="timeout=-1"):
            look(timeout=-1)
        with pytest.raises(ValueError, match="timeout=nan"):
            look(float("nan"))
    gate.open()
    assert answer.exception(timeout=60) is None
    assert answer.result(timeout=60) == 5


def test_a_future_that_timed_out_in_an_await_still_gets_its_answer(
    four: ProcMesh, gate: GateKeeper
) -> None:
    answer = four.spawn("echo", Echo).slice(gpus=0).pass_gate.call_one(gate.gate, 5)

    async def main() -> int:
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(answer.as_asyncio(), 0.01)
        gate.open()
        return await answer

    assert asyncio.run(main()) == 5


class Looking(Actor):
    """An actor that looks at its futures in every way."""

    @endpoint
    def look_often(self, echo: Any, failing: Any) -> tuple[list[int], list[str]]:
        answer, error = echo.same.call_one(3), failing.raise_value_error.call_one("no")
        said: list[str] = []
        for _ in range(3):
            try:
                error.get()
            except Exception as raised:
                said.append(type(raised).__name__)
        return [answer.get(), answer.result(), answer.get(timeout=0)], said


class AsyncLooking(Actor):
    """The same, awaiting."""

    @endpoint
    async def look_often(self, echo: Any, failing: Any) -> tuple[list[int], list[str]]:
        answer, error = echo.same.call_one(3), failing.raise_value_error.call_one("no")
        said: list[str] = []
        for _ in range(3):
            try:
                await error
            except Exception as raised:
                said.append(type(raised).__name__)
        return [await answer, await answer.as_asyncio(), answer.get(timeout=0)], said


@pytest.mark.parametrize("kind", [Looking, AsyncLooking])
def test_a_future_of_an_actor_may_be_looked_at_as_often_as_one_of_the_client(
    four: ProcMesh, kind: type[Any]
) -> None:
    one = four.slice(gpus=0)
    looking, echo, failing = one.spawn("l", kind), one.spawn("e", Echo), one.spawn("f", Failing)
    assert looking.look_often.call_one(echo, failing).get() == ([3] * 3, ["ActorError"] * 3)


def test_a_done_future_does_not_warn_under_a_loop(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)

    async def main() -> list[int]:
        answer = echo.rank.call()
        await answer
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return answer.get().values()

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_a_get_in_a_cell_of_a_notebook_warns_nobody(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    with running_kernel(tmp_path) as kernel:
        shown = kernel.ok(
            "import asyncio, warnings\n"
            "warnings.simplefilter('always')\n"
            "from monarch.actor import Actor, endpoint, this_host\n"
            "class Echo(Actor):\n"
            "    @endpoint\n"
            "    def same(self, value): return value\n"
            "echo = this_host().spawn_procs({'gpus': 2}).spawn('echo', Echo)\n"
            "print(asyncio.get_running_loop().is_running(), echo.same.call(1).get().values())"
        )
        assert (shown.stdout, shown.stderr) == ("True [1, 1]\n", "")
        shown = kernel.ok("print((await echo.same.call(2)).values())")
        assert (shown.stdout, shown.stderr) == ("[2, 2]\n", "")


@returns_future
async def add(left: int, right: int) -> int:
    await asyncio.sleep(0)
    return left + right


class Wrapping(Actor):
    """Its own futures."""

    @endpoint
    def sum_of(self, left: int, right: int) -> int:
        return add(left, right).get()


def test_returns_future_keeps_the_name_and_the_arguments_and_works_in_an_actor(
    four: ProcMesh,
) -> None:
    assert add.__name__ == "add"
    assert add(1, right=2).get(timeout=60) == 3
    assert four.spawn("wrapping", Wrapping).sum_of.call(1, 2).get().values() == [3] * 4


def test_a_future_of_a_port_is_one_like_any_other() -> None:
    port, receiver = Channel[str].open()

    async def main() -> str:
        coming = receiver.recv()
        port.send("awaited")
        return await coming

    assert asyncio.run(main()) == "awaited"
    coming = receiver.recv()
    with pytest.raises(ValueError, match="timeout=-1"):
        coming.get(timeout=-1)
    port.send("got")
    assert [coming.get(timeout=60), coming.get(), coming.result()] == ["got"] * 3
    assert coming.exception() is None


# --- asyncio's own functions ----------------------------------------------------------------------


async def _awaited(future: Future[int]) -> int:
    return await future


async def _by_gather(echo: Any) -> list[int]:
    return list(await asyncio.gather(*(echo.same.call_one(n) for n in range(3))))


async def _by_as_completed(echo: Any) -> list[int]:
    coming = asyncio.as_completed([echo.same.call_one(n) for n in range(3)])
    return sorted([await each for each in coming])


async def _by_wait(echo: Any) -> list[int]:
    done, late = await asyncio.wait([echo.same.call_one(n).as_asyncio() for n in range(3)])
    assert not late
    return sorted(each.result() for each in done)


async def _by_wait_for(echo: Any) -> list[int]:
    return [await asyncio.wait_for(echo.same.call_one(n), 60) for n in range(3)]


async def _by_ensure_future(echo: Any) -> list[int]:
    return [await asyncio.shield(asyncio.ensure_future(echo.same.call_one(n))) for n in range(3)]


async def _by_task_group(echo: Any) -> list[int]:
    if sys.version_info < (3, 11):
        tasks = [asyncio.create_task(_awaited(echo.same.call_one(n))) for n in range(3)]
        return [await task for task in tasks]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_awaited(echo.same.call_one(n))) for n in range(3)]
    return [task.result() for task in tasks]


@pytest.mark.parametrize(
    "way",
    [_by_gather, _by_as_completed, _by_wait, _by_wait_for, _by_ensure_future, _by_task_group],
)
def test_asyncio_waits_for_futures(four: ProcMesh, way: Callable[[Any], Any]) -> None:
    echo = four.slice(gpus=0).spawn("echo", Echo)
    assert asyncio.run(way(echo)) == [0, 1, 2]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.wait wraps awaitables there")
def test_asyncio_wait_of_a_future_says_how(four: ProcMesh) -> None:
    echo: Any = four.slice(gpus=0).spawn("echo", Echo)

    async def main() -> None:
        with pytest.raises(
            AttributeError, match=r"use future.as_asyncio\(\), as in `await asyncio"
        ):
            await asyncio.wait([echo.same.call_one(1)])

    asyncio.run(main())


def test_a_task_of_a_future_says_how(four: ProcMesh) -> None:
    echo: Any = four.slice(gpus=0).spawn("echo", Echo)

    async def main() -> None:
        answer = echo.same.call_one(1)
        said = r"<Future \w+, which is no coroutine: .* or give asyncio its as_asyncio\(\)>"
        with pytest.raises(TypeError, match=said):
            await asyncio.create_task(answer)
        assert repr(answer) in ("<Future pending>", "<Future done>")
        assert await answer == 1

    asyncio.run(main())


def test_after_a_wait_for_ran_out_the_endpoint_goes_on_unless_its_call_is_cancelled(
    four: ProcMesh, gate: GateKeeper
) -> None:
    echo: Any = four.slice(gpus=0).spawn("echo", Echo)
    answer = echo.pass_gate.call_one(gate.gate, 5)
    queued = echo.same.call_one(6)

    async def main() -> int:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(answer, 0.01)
        assert [call.endpoint for call in open_calls() if call == call_of(answer)] == ["pass_gate"]
        call = call_of(queued)
        assert call is not None
        cancel_calls([call])
        with pytest.raises(ActorError, match="CallCancelled"):
            await queued
        gate.open()
        return await answer

    assert asyncio.run(main()) == 5


# --- types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ActorMesh, ValueMesh, Future, Port, PortReceiver, Channel])
def test_types_are_subscripted_in_annotations(kind: Any) -> None:
    def annotated(given: kind[Echo]) -> None: ...  # pyright: ignore[reportInvalidTypeForm]

    found = typing.get_type_hints(annotated, localns={"kind": kind})["given"]
    assert typing.get_origin(found) is kind
    assert typing.get_args(found) == (Echo,)
    assert pickle.loads(pickle.dumps(found)) == found
