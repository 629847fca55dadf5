"""Futures: the rest of what tests/integration/test_futures.py shows."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, Channel, ProcMesh, endpoint, returns_future
from tests.integration.actors import Echo
from tests.integration.gates import GateKeeper
from tests.integration.mortals import Failing
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
