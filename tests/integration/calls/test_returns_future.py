"""`returns_future`: an `async def` whose result can be waited for anywhere."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    ProcMesh,
    context,
    endpoint,
    returns_future,
)
from monarch.observe import call_of, cancel_calls
from tests.integration.programs import run
from tests.integration.sample_actors import Counter


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


def test_it_begins_when_it_is_first_waited_for(four: ProcMesh) -> None:
    one = four.spawn("counters", Counter).slice(gpus=3)
    first, second = added(one, [1]), added(one, [1])
    assert [*second.get(timeout=60), *first.get(timeout=60)] == [1, 2]


def test_one_that_is_never_waited_for_does_not_run_and_python_warns_of_it() -> None:
    with pytest.warns(RuntimeWarning, match="'who' was never awaited"):
        who()


@returns_future
async def place() -> tuple[int, int]:
    return threading.get_ident(), id(asyncio.get_running_loop())


def test_a_blocking_wait_runs_it_on_its_own_thread() -> None:
    assert place().get(timeout=60)[0] == threading.get_ident()


def test_an_await_runs_it_on_its_own_loop() -> None:
    async def main() -> tuple[int, int]:
        here = threading.get_ident(), id(asyncio.get_running_loop())
        assert await place() == here
        assert await place().as_asyncio() == here
        assert await asyncio.gather(place(), place()) == [here, here]
        return await asyncio.wait_for(place(), 60)

    assert asyncio.run(main())[0] == threading.get_ident()


def test_a_blocking_wait_on_a_thread_that_runs_a_loop_gets_it_from_another_one() -> None:
    async def main() -> tuple[int, int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of blocking a loop, unless it was done at once
            return place().get(timeout=60)

    assert asyncio.run(main())[0] != threading.get_ident()


class Endless:
    """A body that never ends by itself, and what it has seen."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.begun = threading.Event()
        self.ended = threading.Event()

    @returns_future
    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        finally:
            self.ended.set()


def test_a_time_out_of_the_wait_that_runs_it_cancels_it_and_fails_the_future() -> None:
    body = Endless()
    future = body.run()
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"within 0.01 s; the function was cancelled"):
            future.get(timeout=0.01)
    assert body.seen == ["cancelled"]


def test_so_does_one_under_a_running_loop() -> None:
    body = Endless()

    async def main() -> None:
        with pytest.warns(RuntimeWarning), pytest.raises(TimeoutError, match="was cancelled"):
            body.run().get(timeout=0.01)

    asyncio.run(main())
    assert body.ended.wait(60)
    assert body.seen == ["cancelled"]


@pytest.mark.parametrize("as_asyncio", [False, True])
def test_a_cancelled_await_cancels_it(as_asyncio: bool) -> None:
    body = Endless()

    async def main() -> None:
        future = body.run()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future.as_asyncio() if as_asyncio else future, 0.01)
        await asyncio.sleep(0)
        assert body.seen == ["cancelled"]
        assert future.done

    asyncio.run(main())


def test_who_only_observes_cancels_nothing() -> None:
    async def main() -> int:
        future = slow_value()
        running = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.001)
        let_go.set()
        return await running

    let_go = asyncio.Event()

    @returns_future
    async def slow_value() -> int:
        await let_go.wait()
        return 5

    assert asyncio.run(main()) == 5


def test_other_threads_get_what_the_first_wait_brings_about() -> None:
    future = place()
    found: list[tuple[int, int]] = []
    threads = [threading.Thread(target=lambda: found.append(future.get(60))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_blocking_wait_for_what_runs_on_the_same_loop_is_refused() -> None:
    body = Endless()

    async def main() -> None:
        future = body.run()
        running = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="`await` the future instead"):
            future.get()
        running.cancel()

    asyncio.run(main())


@returns_future
async def interrupted() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(stop)
    await asyncio.Event().wait()


def test_an_interrupt_in_a_callback_ends_the_wait_and_no_other_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    future = interrupted()
    with pytest.raises(KeyboardInterrupt):
        future.get(timeout=60)
    with pytest.raises(asyncio.CancelledError):
        future.get()

    async def on_the_shared_loop() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of blocking a loop
            with pytest.raises(TimeoutError):
                interrupted().get(timeout=0.2)
            return who().get(timeout=60)

    assert asyncio.run(on_the_shared_loop()) == "client"
    assert "the loop goes on" in caplog.text


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


def test_ctrl_c_ends_the_wait_and_cancels_the_body() -> None:
    body = Endless()
    future = body.run()

    def interrupt() -> None:
        assert body.begun.wait(60)
        while not body.ended.wait(1):  # one that comes just before a system call does not end that
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        future.get(timeout=60)
    thread.join(60)
    assert body.ended.is_set()
    assert body.seen == ["cancelled"]
    assert future.done


class Blocking(Actor):
    """Waits, on the thread of a sync actor, for a body that never ends."""

    @endpoint
    def block(self, begun: Port[str]) -> None:
        never_ends(begun).get()

    @endpoint
    def is_on_the_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()


@returns_future
async def never_ends(begun: Port[str]) -> None:
    try:
        begun.send("begun")
        await asyncio.Event().wait()
    finally:
        begun.send("ended")


def test_a_cancelled_call_ends_the_body_that_its_endpoint_blocks_for(
    spawn_procs: Callable[..., ProcMesh],
) -> None:
    one = spawn_procs()
    for main in (True, False):  # the first actor of a proc has its main thread
        blocking = one.spawn("blocking", Blocking)
        assert blocking.is_on_the_main_thread.call_one().get(timeout=60) is main
        port, receiver = Channel[str].open()
        blocked = blocking.block.call_one(port)
        assert receiver.recv().get(timeout=60) == "begun"
        call = call_of(blocked)
        assert call is not None
        cancel_calls([call])
        with pytest.raises(ActorError, match="CallCancelled"):
            blocked.get(timeout=60)
        assert receiver.recv().get(timeout=60) == "ended"
        assert blocking.is_on_the_main_thread.call_one().get(timeout=60) is main
