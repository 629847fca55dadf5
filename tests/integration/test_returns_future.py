"""`returns_future`: an `async def` whose result can be waited for anywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from monarch.actor import ProcMesh, context, returns_future
from tests.integration.actors import Counter
from tests.integration.programs import run


@returns_future
async def added(counters: Counter, amounts: list[int]) -> list[int]:
    return [(await counters.add.call_one(amount)) for amount in amounts]


@returns_future
async def raising() -> None:
    raise KeyError("as it is")


@returns_future
async def who() -> str:
    return context().actor_instance.name


def test_it_can_be_got_by_blocking(four: ProcMesh) -> None:
    one = four.spawn("counters", Counter).slice(gpus=1)
    assert added(one, [1, 2, 3]).get(timeout=60) == [1, 3, 6]


def test_it_can_be_awaited(four: ProcMesh) -> None:
    one = four.spawn("counters", Counter).slice(gpus=2)

    async def program() -> list[int]:
        return await added(one, [5]) + await added(one, [5])

    assert asyncio.run(program()) == [5, 10]


def test_it_begins_though_nobody_waits(four: ProcMesh) -> None:
    one = four.spawn("counters", Counter).slice(gpus=3)
    first, second = added(one, [1]), added(one, [1])
    assert sorted([*second.get(timeout=60), *first.get(timeout=60)]) == [1, 2]


def test_what_it_raises_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError, match="as it is"):
        raising().get(timeout=60)


def test_it_runs_as_who_called_it() -> None:
    assert who().get(timeout=60) == "client"


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(TypeError, match="async def"):
        returns_future(len)  # type: ignore[arg-type]


def test_it_travels_with_the_actors_of_a_script(tmp_path: Path) -> None:
    program = """
from monarch.actor import Actor, endpoint, returns_future, this_host

@returns_future
async def one_more(number):
    return number + 1

class Sums(Actor):
    @returns_future
    async def twice(self, number):
        return 2 * number

    @endpoint
    async def add(self, number):
        return await self.twice(number) + await one_more(number)

print(this_host().spawn_procs().spawn("sums", Sums).add.call_one(4).get(timeout=60))
"""
    assert run(tmp_path, program) == (0, "13\n", "")
