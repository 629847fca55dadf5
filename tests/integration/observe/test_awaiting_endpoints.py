"""`stacks` says of endpoints that wait: which they are, since when, where, and for what."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch import observe
from monarch.actor import Actor, Channel, ProcMesh, concurrent_endpoint, endpoint, shutdown_context
from monarch.config import configured
from monarch.observe import StackGroup, stacks
from tests.integration.commands import Commands

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]


class Box(Actor):
    """Its `get` waits for a `put` that can only begin afterwards."""

    def __init__(self) -> None:
        self.full = asyncio.Event()

    @endpoint
    async def get(self) -> None:
        await self.full.wait()

    @endpoint
    async def put(self) -> None:
        self.full.set()


class BlockingBox(Actor):
    """The same on a thread."""

    def __init__(self) -> None:
        self.full = threading.Event()

    @endpoint
    def get(self) -> None:
        self.full.wait()

    @endpoint
    def put(self) -> None:
        self.full.set()


class Waiter(Actor):
    """Awaits one thing after another, all at the same time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.queue: asyncio.Queue[int] = asyncio.Queue()

    @concurrent_endpoint
    async def an_answer(self, other: Any) -> None:
        await other.get.call_one()

    @concurrent_endpoint
    async def several(self, other: Any) -> None:
        await asyncio.gather(other.get.call_one(), asyncio.sleep(600))

    @concurrent_endpoint
    async def a_message(self) -> None:
        _, receiver = Channel[int].open()
        await receiver.recv()

    @concurrent_endpoint
    async def a_lock(self) -> None:
        async with self.lock:
            await self.inside()

    async def inside(self) -> None:
        await self.queue.get()

    @concurrent_endpoint
    async def with_a_limit(self) -> None:
        await asyncio.wait_for(self.queue.get(), 600)

    @concurrent_endpoint
    async def a_task(self) -> None:
        await asyncio.create_task(self.inside())

    @concurrent_endpoint
    async def a_future(self) -> None:
        await asyncio.get_running_loop().create_future()

    @concurrent_endpoint
    async def a_while(self) -> None:
        await asyncio.sleep(600)


class Asker(Actor):
    """Blocks on an answer, in a sleep, on a message, on a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    @endpoint
    def ask(self, other: Any) -> None:
        other.get.call_one().get()

    @endpoint
    def sleep(self) -> None:
        time.sleep(600)

    @endpoint
    def a_message(self) -> None:
        _, receiver = Channel[int].open()
        receiver.recv().get()

    @endpoint
    def a_lock(self) -> None:
        with self.lock, self.lock:
            pass


class BlocksALoop(Actor):
    """An async endpoint that blocks the loop of its actor."""

    @endpoint
    async def sleep(self) -> None:
        time.sleep(600)  # noqa: ASYNC251


class RunsALoop(Actor):
    """A sync endpoint with a loop of its own."""

    @endpoint
    def run(self) -> None:
        asyncio.run(asyncio.sleep(600))


@pytest.fixture
def workers(spawn_procs: Spawn) -> Any:
    with configured(cleanup_timeout="100ms"):
        procs = spawn_procs({"gpus": 2}, name="workers")
        procs.initialized.get()
        yield procs
        observe.cancel_calls(observe.open_calls())


def look_until(procs: ProcMesh, ready: Callable[[StackGroup], bool]) -> tuple[str, StackGroup]:
    """The headline and the group of the first rank, once that is as expected."""
    last = ""
    for _ in range(200):
        (found,) = stacks(procs.slice(gpus=0)).meshes
        if ready(found.groups[0]):
            return found.headline, found.groups[0]
        last = str(found)
    pytest.fail(f"never came there; last: {last}")


def awaited(group: StackGroup) -> dict[str, str]:
    """What each endpoint awaits, by its name."""
    return {thread.name: thread.awaits for thread in group.threads}


@pytest.mark.parametrize("box", [Box, BlockingBox])
def test_a_call_that_is_queued_behind_the_wait_that_it_would_end_is_named_as_a_deadlock(
    workers: ProcMesh, box: Any
) -> None:
    boxes = workers.slice(gpus=0).spawn("boxes", box)
    held = boxes.get.call_one()
    queued = [boxes.put.call_one(), boxes.put.call_one()]
    name = box.__name__
    _, group = look_until(workers, lambda group: group.notes != () and "2" in group.notes[0])
    (note,) = group.notes
    of = "asyncio" if box is Box else "threading"
    assert note == (
        f"2 messages (put) are queued behind {name}.get, which waits for {of}.Event.wait of "
        "self.full. The actor runs one call at a time: if put has to end this wait, it is a "
        "deadlock; @concurrent_endpoint on get lets them overlap (in an async actor)"
    )
    assert group.for_s[0] > 0
    assert not held.done
    assert not any(one.done for one in queued)
    headline, group = look_until(workers, lambda group: bool(group.threads))
    if box is Box:
        assert headline == "1 in Box.get, awaiting asyncio.Event.wait of self.full"
        (task,) = group.threads
        assert [frame.name for frame in task.frames] == ["Box.get"]
        assert task.frames[0].filename.endswith("test_awaiting_endpoints.py")


def test_each_endpoint_that_awaits_says_what_it_awaits(workers: ProcMesh) -> None:
    box = workers.slice(gpus=1).spawn("box", Box)
    waiter = workers.slice(gpus=0).spawn("waiter", Waiter)
    held = [waiter.an_answer.call_one(box), waiter.several.call_one(box)]
    names = ("a_message", "a_lock", "with_a_limit", "a_task", "a_future", "a_while")
    held += [getattr(waiter, name).call_one() for name in names]
    headline, group = look_until(workers, lambda group: len(group.threads) == len(held))
    answer = "an answer from Box.get on workers[gpus=1]"
    assert awaited(group) == {
        "Waiter.an_answer": answer,
        "Waiter.several": f"2 of 2 gathered: {answer}; asyncio.sleep(600)",
        "Waiter.a_message": "a message to a port",
        "Waiter.a_lock": "asyncio.Queue.get of self.queue",
        "Waiter.with_a_limit": "asyncio.wait_for, and in it asyncio.Queue.get of self.queue",
        "Waiter.a_task": "the task Waiter.inside, which awaits asyncio.Queue.get of self.queue",
        "Waiter.a_future": "a future",
        "Waiter.a_while": "asyncio.sleep(600)",
    }
    assert headline == f"1 in Waiter.an_answer, awaiting {answer}, and 7 more"
    by_name = {thread.name: thread for thread in group.threads}
    frames = [frame.name for frame in by_name["Waiter.a_lock"].frames]
    assert frames == ["Waiter.a_lock", "Waiter.inside"]
    assert group.notes == ()


def test_an_endpoint_that_blocks_on_an_answer_says_which(workers: ProcMesh) -> None:
    box = workers.slice(gpus=1).spawn("box", Box)
    asker = workers.slice(gpus=0).spawn("asker", Asker)
    held = asker.ask.call_one(box)
    _, group = look_until(workers, lambda group: group.threads != () and group.threads[0].waits)
    (thread,) = group.threads
    assert thread.awaits == "an answer from Box.get on workers[gpus=1]"
    assert "\n  waits for an answer from Box.get on workers[gpus=1], for " in str(stacks(workers))
    queued = asker.sleep.call_one()
    _, group = look_until(workers, lambda group: bool(group.notes))
    (note,) = group.notes
    assert note.startswith(
        "1 message (sleep) is queued behind Asker.ask, which waits for an answer from Box.get on "
        "workers[gpus=1], for "
    )
    assert "deadlock" not in note
    assert not held.done
    assert not queued.done


@pytest.mark.parametrize("actor", ["first", "second"])
@pytest.mark.parametrize(
    ("endpoint_name", "what", "headline", "is_timed"),
    [
        ("sleep", "time.sleep(600)", "in time.sleep(600)", True),
        ("a_message", "a message to a port", "waiting for a message to a port", True),
        ("a_lock", "threading.Lock.acquire of self.lock", "in threading.Lock.acquire of self.lock",
         False),
    ],
)  # fmt: skip
def test_an_endpoint_that_blocks_says_what_on_and_since_when(
    workers: ProcMesh, actor: str, endpoint_name: str, what: str, headline: str, is_timed: bool
) -> None:
    one = workers.slice(gpus=0)
    if actor == "second":  # the first has the main thread
        one.spawn("first", Asker)
    asker = one.spawn("asker", Asker)
    held = getattr(asker, endpoint_name).call_one()
    found, group = look_until(workers, lambda group: headline in group.what)
    (thread,) = group.threads
    assert found == f"1 {group.what}"
    assert (thread.awaits, thread.waits) == (what, "waiting" in headline)
    assert not thread.is_task
    assert thread.name == ("" if actor == "first" else "actor-asker")
    assert [bool(seconds) for seconds in group.waited_s] == [is_timed]
    assert not held.done


def test_an_async_endpoint_that_blocks_its_loop_says_what_on(workers: ProcMesh) -> None:
    held = workers.slice(gpus=0).spawn("blocks", BlocksALoop).sleep.call_one()
    _, group = look_until(workers, lambda group: "in time.sleep(600)" in group.what)
    (thread,) = group.threads
    assert (thread.awaits, thread.is_task) == ("time.sleep(600)", False)
    assert not held.done


def test_a_sync_endpoint_with_a_loop_of_its_own_says_what_that_awaits(workers: ProcMesh) -> None:
    held = workers.slice(gpus=0).spawn("runs", RunsALoop).run.call_one()
    _, group = look_until(workers, lambda group: "in asyncio.sleep(600)" in group.what)
    assert group.waited_s[0]
    assert not held.done


def test_a_terminal_says_the_same(workers: ProcMesh, own_base_directory: Path) -> None:
    box = workers.slice(gpus=0).spawn("box", Box)
    held, queued = box.get.call_one(), box.put.call_one()
    look_until(workers, lambda group: bool(group.notes))
    status, out, err = Commands(own_base_directory)("stacks", "workers[gpus=0]")
    assert (status, err) == (0, "")
    assert "1 in Box.get, awaiting asyncio.Event.wait of self.full: gpus=0, for " in out
    assert "\n  task Box.get\n" in out
    assert "\n  waits for asyncio.Event.wait of self.full\n" in out
    assert "1 message (put) is queued behind Box.get, which waits for asyncio.Event.wait" in out
    assert not held.done
    assert not queued.done


@pytest.fixture(autouse=True)
def no_session_of_before() -> None:
    shutdown_context()
