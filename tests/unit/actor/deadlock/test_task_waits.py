"""What a task waits for is followed from a future to the task, through what asyncio has between."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from monarch._src.actor.deadlock.task_waits import needs

Way = Callable[["asyncio.Future[None]"], Awaitable[object]]


async def by_hand(future: asyncio.Future[None]) -> None:
    await future


async def by_group(future: asyncio.Future[None]) -> None:
    async with asyncio.TaskGroup() as group:  # pyright: ignore[reportAttributeAccessIssue]
        group.create_task(by_hand(future))
        group.create_task(asyncio.sleep(0))


async def all_of(future: asyncio.Future[None]) -> None:
    await asyncio.wait(
        [asyncio.create_task(by_hand(future)), asyncio.create_task(asyncio.sleep(0))]
    )


async def first_of(future: asyncio.Future[None]) -> None:
    other = asyncio.create_task(asyncio.sleep(3600))
    try:
        await asyncio.wait(
            [asyncio.create_task(by_hand(future)), other], return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        other.cancel()


async def all_of_in_time(future: asyncio.Future[None]) -> None:
    await asyncio.wait([asyncio.create_task(by_hand(future))], timeout=3600)


async def in_time(future: asyncio.Future[None]) -> None:
    await asyncio.wait_for(future, 3600)


async def by_deadline(future: asyncio.Future[None]) -> None:
    async with asyncio.timeout(3600):  # pyright: ignore[reportAttributeAccessIssue]
        await future


async def task_by_deadline(future: asyncio.Future[None]) -> None:
    await asyncio.gather(by_deadline(future), asyncio.sleep(0))


async def in_the_background(future: asyncio.Future[None]) -> None:
    task = asyncio.create_task(by_hand(future))
    await asyncio.sleep(0.01)  # so that the task waits before anybody waits for it
    await task


async def first_of_by_callback(future: asyncio.Future[None]) -> None:
    either = asyncio.get_running_loop().create_future()
    for one in (asyncio.create_task(by_hand(future)), asyncio.create_task(asyncio.sleep(0.01))):
        one.add_done_callback(lambda _: None if either.done() else either.set_result(None))
    await either


async def gathered(future: asyncio.Future[None]) -> None:
    await asyncio.gather(asyncio.gather(by_hand(future), asyncio.sleep(0)), asyncio.sleep(0))


async def shielded(future: asyncio.Future[None]) -> None:
    await asyncio.shield(by_hand(future))


async def seen_from(way: Way, *, root: bool) -> bool:
    """Whether this task, or whatever `asyncio.run` runs, needs a future that it awaits this way."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    found: list[bool] = []
    task = asyncio.current_task()

    def look() -> None:
        found.append(needs(None if root else task, future))
        future.set_result(None)

    # Once what the way does at once is done, and before anything that is timed.
    asyncio.get_running_loop().call_later(0.001, look)
    await way(future)
    return found[0]


newer = pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio has it from Python 3.11 on")


@pytest.mark.parametrize("root", [False, True], ids=["a task", "asyncio.run"])
@pytest.mark.parametrize(
    "way", [by_hand, gathered, shielded, all_of, pytest.param(by_group, marks=newer)]
)
def test_what_a_task_cannot_go_on_without_is_found(way: Way, root: bool) -> None:
    assert asyncio.run(seen_from(way, root=root))


@pytest.mark.parametrize("root", [False, True], ids=["a task", "asyncio.run"])
@pytest.mark.parametrize(
    "way",
    [
        first_of,
        in_time,
        all_of_in_time,
        in_the_background,
        first_of_by_callback,
        pytest.param(by_deadline, marks=newer),
        pytest.param(task_by_deadline, marks=newer),
    ],
)
def test_what_a_task_may_go_on_without_is_not(way: Way, root: bool) -> None:
    assert not asyncio.run(seen_from(way, root=root))
