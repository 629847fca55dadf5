"""An event loop with nothing to do receives: no message and nothing of its own is slept beside."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from monarch._src.actor.future import Future
from monarch._src.actor.run.event_loop import ActorLoop, new_loop
from monarch._src.net.local.waitable import Waitable
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import AnyMessage, FlushOutput, OutputFlushed
from tests.unit.net.asker import PATIENCE_S, MakeNode, run_all


class Asker:
    """A node that asks another one; answers settle futures."""

    def __init__(self, make_node: MakeNode, sockets: Path) -> None:
        self.asked: dict[int, Future[int]] = {}
        self.handled_by: dict[int, int] = {}
        self.node: Node = make_node("asker", self.handle)
        self.echo: Node = make_node("echo", self.answer)
        self.node.link("echo", f"ipc://{sockets}/echo")

    def handle(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        if isinstance(message, OutputFlushed):
            self.handled_by[message.request] = threading.get_ident()
            self.asked[message.request].settle(lambda: message.request)

    def answer(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        if isinstance(message, FlushOutput):
            self.echo.send(peer, OutputFlushed(message.request))

    def ask(self, number: int) -> Future[int]:
        future = self.asked[number] = Future[int](self.node.leader)
        assert self.node.send("echo", FlushOutput(number))
        return future

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """On a loop of its own, on this thread."""
        loop = new_loop(self.node.leader)
        assert type(loop) is ActorLoop
        try:
            loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()


@pytest.fixture
def asker(make_node: MakeNode, sockets: Path) -> Asker:
    return Asker(make_node, sockets)


def test_a_loop_with_nothing_to_do_receives_on_its_own_thread(
    asker: Asker, no_rescue: None
) -> None:
    me = threading.get_ident()

    async def main() -> None:
        number = in_a_row = 0
        while in_a_row < 100:  # the IO thread may have begun before us, and is asked to leave
            assert await asker.ask(number) == number
            in_a_row = in_a_row + 1 if asker.handled_by[number] == me else 0
            number += 1

    asker.run(main)


def test_many_answers_are_awaited_at_once(asker: Asker, no_rescue: None) -> None:
    async def main() -> None:
        found = await asyncio.gather(*(asker.ask(number) for number in range(500)))
        assert found == list(range(500))

    asker.run(main)


def test_while_it_receives_its_timers_its_descriptors_and_other_threads_wake_it(
    asker: Asker, no_rescue: None
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(50):
            await asyncio.sleep(0.0005)
            assert await asyncio.to_thread(lambda number=number: number) == number
            reader, writer = os.pipe()
            readable = asyncio.Event()
            loop.add_reader(reader, readable.set)
            threading.Thread(target=os.write, args=(writer, b"x")).start()
            await readable.wait()
            loop.remove_reader(reader)
            os.close(reader)
            os.close(writer)
            assert await asker.ask(number) == number

    asker.run(main)


def test_a_loop_that_is_busy_leaves_receiving_to_others(asker: Asker) -> None:
    async def main() -> None:
        future = asker.ask(1)
        while not future.done:  # noqa: ASYNC110 - so that it never has nothing to do
            await asyncio.sleep(0)
        assert await future == 1

    asker.run(main)
    assert asker.handled_by[1] != threading.get_ident()


def test_a_loop_that_was_busy_receives_again(asker: Asker, no_rescue: None) -> None:
    """The IO thread, called while the loop could not receive, gives the baton back."""

    async def main() -> None:
        asker.node.leader.receive_now()
        for number in range(100):
            assert await asker.ask(number) == number

    asker.run(main)
    assert threading.get_ident() in asker.handled_by.values()


def test_what_other_threads_schedule_runs(asker: Asker, no_rescue: None) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        count, all_ran = 0, asyncio.Event()

        def ran() -> None:
            nonlocal count
            count += 1
            if count == 4000:
                all_ran.set()

        def schedules() -> None:
            for _ in range(1000):
                loop.call_soon_threadsafe(ran)

        threads = [threading.Thread(target=schedules) for _ in range(4)]
        for thread in threads:
            thread.start()
        await all_ran.wait()
        for thread in threads:
            thread.join(timeout=PATIENCE_S)

    asker.run(main)


def test_loops_and_threads_may_wait_at_the_same_time(asker: Asker) -> None:
    """Answers for either come while the other leads, follows, has a timer or computes."""
    rounds = 300

    def loop(first: int) -> None:
        draw = random.Random(first)

        async def main() -> None:
            for number in range(first, first + rounds):
                match draw.randrange(4):
                    case 0:
                        await asyncio.sleep(0.0003)
                    case 1:
                        await asyncio.sleep(0)
                    case 2:
                        assert not asker.node.wait(Waitable(), 0.0003)  # it blocks its loop
                    case _:
                        pass
                assert await asker.ask(number) == number

        asker.run(main)

    def thread(first: int) -> None:
        for number in range(first, first + rounds):
            assert asker.ask(number).get(PATIENCE_S) == number

    run_all(
        lambda: loop(0), lambda: loop(1000), lambda: loop(2000), lambda: thread(3000),
        lambda: thread(4000),
    )  # fmt: skip


def test_two_idle_loops_receive_for_each_other(asker: Asker, no_rescue: None) -> None:
    rounds, turns = 300, (threading.Semaphore(1), threading.Semaphore(0))

    def loop(me: int) -> None:
        async def main() -> None:
            for number in range(rounds):
                await asyncio.to_thread(turns[me].acquire)
                assert await asker.ask(2 * number + me) == 2 * number + me
                turns[1 - me].release()

        asker.run(main)

    run_all(lambda: loop(0), lambda: loop(1))


def test_when_the_node_is_closed_a_loop_goes_on_as_any_other(make_node: MakeNode) -> None:
    for number in range(30):
        node = make_node(f"n{number}")

        def loops(node: Node = node) -> None:
            async def main() -> None:
                closer = asyncio.get_running_loop().run_in_executor(None, node.close)
                for _ in range(10):
                    await asyncio.sleep(0.0002)
                await closer
                await asyncio.sleep(0.0002)

            loop = ActorLoop(node.leader)
            loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

        run_all(loops)


def test_a_message_that_a_loop_handles_may_close_the_node(
    asker: Asker, no_rescue: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, closed_on = asker.node._handle, list[int]()

    def close(peer: str, message: AnyMessage, payload: Payload) -> None:
        asker.node.close()
        closed_on.append(threading.get_ident())
        handle(peer, message, payload)

    monkeypatch.setattr(asker.node, "_handle", close)

    async def main() -> None:
        assert await asker.ask(1) == 1
        await asyncio.sleep(0.001)

    asker.run(main)
    assert closed_on == [threading.get_ident()]


# From Python 3.14 on policies are deprecated, and still there.
@pytest.mark.filterwarnings("ignore:'asyncio.*olicy' is deprecated:DeprecationWarning")
def test_a_loop_of_the_users_own_kind_is_left_as_it_is(asker: Asker) -> None:
    class Kind(asyncio.SelectorEventLoop):
        pass

    class Policy(asyncio.DefaultEventLoopPolicy):
        _loop_factory = Kind

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(Policy())
    try:
        loop = new_loop(asker.node.leader)
        assert type(loop) is Kind

        async def main() -> None:
            assert await asker.ask(1) == 1

        loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))
    finally:
        asyncio.set_event_loop_policy(before)
        loop.close()


def test_a_descriptor_that_was_of_a_loop_is_free_for_others(
    asker: Asker, no_rescue: None, make_node: MakeNode, sockets: Path
) -> None:
    async def main() -> None:
        assert await asker.ask(number) == number

    for number in range(20):  # a loop and a pipe that may have the same descriptor, in turn
        asker.run(main)
        friend = make_node(f"friend{number}")
        asker.node.link(friend.name, friend.address)
        assert asker.node.send(friend.name, OutputFlushed(number))
    asker.run(main)


def test_a_message_that_a_loop_handles_wakes_no_thread(
    asker: Asker, no_rescue: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    me = threading.get_ident()

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        wake, write = asker.node.router.wake, loop._write_to_self
        monkeypatch.setattr(asker.node.router, "wake", lambda: (woken.append(1), wake()))
        monkeypatch.setattr(loop, "_write_to_self", lambda: (woken.append(2), write()))
        number = in_a_row = 0
        while in_a_row < 50:
            woken.clear()
            assert await asker.ask(number) == number
            quiet = asker.handled_by[number] == me and not woken
            in_a_row = in_a_row + 1 if quiet else 0
            number += 1
        monkeypatch.undo()

    asker.run(main)
