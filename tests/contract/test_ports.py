"""Ports: from any process to any, in order, once or often; beyond tests/integration."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Future,
    Port,
    PortReceiver,
    ProcMesh,
    context,
    current_rank,
    endpoint,
    send,
)
from tests.integration.sample_actors import Echo

Spawn = Callable[..., ProcMesh]


class Sending(Actor):
    """Sends to whatever port it is given."""

    @endpoint
    def count_to(self, port: Port[tuple[str, int]], end: int) -> None:
        name = str(context().actor_instance.actor_id)
        for number in range(end):
            port.send((name, number))

    @endpoint
    def send_twice(self, port: Port[int]) -> str:
        port.send(1)
        try:
            port.send(2)
        except RuntimeError as error:
            return str(error)
        return "sent twice"

    @endpoint
    def raise_through(self, port: Port[int]) -> None:
        port.exception(LookupError("as it is"))

    @endpoint
    def rank(self) -> int:
        return current_rank().rank


class Receiving(Actor):
    """Opens a port of its own, and reads it."""

    @endpoint
    def open(self) -> Port[Any]:
        self.port, self.receiver = Channel[Any].open()
        return self.port

    @endpoint
    def read(self, count: int) -> list[Any]:
        return [self.receiver.recv().get(timeout=60) for _ in range(count)]


class AsyncReceiving(Actor):
    """The same on an event loop."""

    @endpoint
    async def open(self) -> Port[Any]:
        self.port, self.receiver = Channel[Any].open()
        return self.port

    @endpoint
    async def read(self, count: int) -> list[Any]:
        return [await self.receiver.recv() for _ in range(count)]


# --- any process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Receiving, AsyncReceiving])
def test_any_process_sends_to_a_port_that_any_other_reads(
    four: ProcMesh, spawn_procs: Spawn, kind: type[Any]
) -> None:
    receiving = four.slice(gpus=0).spawn("receiving", kind)
    port = receiving.open.call_one().get()
    senders = [
        four.slice(gpus=0).spawn("same process", Sending),
        four.slice(gpus=1).spawn("same mesh", Sending),
        spawn_procs().spawn("elsewhere", Sending),
    ]
    for sender in senders:
        sender.count_to.broadcast(port, 100)
    for number in range(100):
        port.send(("client", number))
    seen: dict[str, list[int]] = {}
    for name, number in receiving.read.call_one(400).get():
        seen.setdefault(name, []).append(number)
    assert len(seen) == 4
    assert all(numbers == list(range(100)) for numbers in seen.values())


def test_a_port_is_the_same_after_a_journey(four: ProcMesh) -> None:
    port, receiver = Channel[int].open()
    back = four.slice(gpus=0).spawn("echo", Echo).same.call_one([port]).get()[0]
    assert back == port == pickle.loads(pickle.dumps(port))
    assert len({back, port}) == 1
    back.send(3)
    assert receiver.recv().get(timeout=60) == 3


def test_an_exception_sent_to_a_port_is_raised_as_it_is_to_who_reads_it(four: ProcMesh) -> None:
    sending = four.slice(gpus=1).spawn("sending", Sending)
    port, receiver = Channel[int].open()
    sending.raise_through.call_one(port).get()
    error = receiver.recv().exception(timeout=60)
    assert type(error) is LookupError
    port.send(5)
    assert receiver.recv().get(timeout=60) == 5


# --- waiting --------------------------------------------------------------------------------------


def test_a_port_is_open_as_long_as_somebody_waits_for_it(four: ProcMesh) -> None:
    def answer_of(mesh: Any) -> Future[int]:
        port, receiver = Channel[int].open(once=True)
        send(mesh.rank, (), {}, port)
        return receiver.recv()

    sending = four.spawn("sending", Sending)
    for rank in range(4):
        answer = answer_of(sending.slice(gpus=rank))
        gc.collect()
        assert answer.get(timeout=60) == 0, "its rank in a slice of one"


def test_a_receiver_gives_futures_that_can_be_had_before_any_message() -> None:
    port, receiver = Channel[int].open()
    coming = [receiver.recv() for _ in range(50)]
    assert not any(future.done for future in coming)
    for number in range(50):
        port.send(number)
    assert [future.get(timeout=60) for future in coming] == list(range(50))


def test_a_time_out_in_an_await_loses_no_message() -> None:
    port, receiver = Channel[int].open()

    async def main() -> list[int]:
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(_awaited(receiver), 0.01)
        port.send(1)
        port.send(2)
        return [await receiver.recv(), await receiver.recv()]

    assert asyncio.run(main()) == [1, 2]


async def _awaited(receiver: PortReceiver[int]) -> int:
    return await receiver.recv()


def test_a_message_that_comes_after_a_time_out_is_the_next_one() -> None:
    port, receiver = Channel[int].open()
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0.01)
    port.send(1)
    with pytest.raises(TimeoutError):
        [receiver.recv().get(timeout=60), receiver.recv().get(timeout=0)]
    port.send(2)
    assert receiver.recv().get(timeout=60) == 2


def test_a_future_that_is_dropped_unread_takes_no_message() -> None:
    port, receiver = Channel[int].open()
    receiver.recv()  # before the message
    port.send(1)
    assert receiver.recv().get(timeout=60) == 1
    port.send(2)
    port.send(3)
    coming = receiver.recv()
    later = receiver.recv()
    assert later.get(timeout=60) == 3  # so the other one has its message
    del coming
    assert receiver.recv().get(timeout=60) == 2


def test_what_is_given_back_stays_in_order() -> None:
    port, receiver = Channel[int].open()
    for number in range(20):
        port.send(number)
    port.send(20)
    futures = [receiver.recv() for _ in range(21)]
    assert futures.pop().get(timeout=60) == 20
    while futures:
        futures.pop(len(futures) // 2)
    assert [receiver.recv().get(timeout=60) for _ in range(20)] == list(range(20))


def test_a_message_that_is_given_back_goes_to_the_next_that_waits() -> None:
    port, receiver = Channel[int].open()
    first, second = receiver.recv(), receiver.recv()
    del first
    port.send(1)
    assert second.get(timeout=60) == 1


def test_a_future_that_only_a_task_waits_for_is_not_dropped() -> None:
    port, receiver = Channel[int].open()

    async def main() -> int:
        coming = receiver.recv().as_asyncio()
        await asyncio.sleep(0)
        gc.collect()
        port.send(7)
        return await asyncio.wait_for(coming, 60)

    assert asyncio.run(main()) == 7


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_once_port_is_not_spent_by_a_future_that_is_dropped(when: str) -> None:
    port, receiver = Channel[int].open(once=True)
    if when == "after":
        receiver.recv()
    port.send(41)
    behind, last = Channel[int].open()
    behind.send(0)
    last.recv().get(timeout=60)  # so the message is there
    receiver.recv()
    held = receiver.recv()
    with pytest.raises(RuntimeError, match="has been read"):
        receiver.recv()
    assert held.get(timeout=60) == 41
    del held
    with pytest.raises(RuntimeError, match="has been read"):
        receiver.recv()


@pytest.mark.parametrize("attempt", range(10))
def test_futures_that_other_threads_drop_lose_no_message(attempt: int) -> None:
    port, receiver = Channel[int].open()
    stop = threading.Event()

    def drops() -> None:
        while not stop.is_set():
            receiver.recv()

    droppers = [threading.Thread(target=drops) for _ in range(3)]
    for thread in droppers:
        thread.start()
    try:
        for number in range(300):
            port.send(number)
        found = [receiver.recv().get(timeout=60) for _ in range(300)]
    finally:
        stop.set()
        for thread in droppers:
            thread.join(60)
    assert sorted(found) == list(range(300))


# --- once -----------------------------------------------------------------------------------------


def test_a_once_port_refuses_a_second_message_in_any_process(four: ProcMesh) -> None:
    sending = four.slice(gpus=2).spawn("sending", Sending)
    port, receiver = Channel[int].open(once=True)
    said = sending.send_twice.call_one(port).get()
    assert said == "this port takes one message, and has had it"
    assert receiver.recv().get(timeout=60) == 1
    with pytest.raises(RuntimeError, match="has been read"):
        receiver.recv()


def test_a_once_port_that_has_been_used_stays_so_when_it_is_given_away(four: ProcMesh) -> None:
    port, receiver = Channel[int].open(once=True)
    port.send(0)
    with pytest.raises(ActorError, match="RuntimeError: this port takes one message"):
        four.slice(gpus=2).spawn("sending", Sending).send_twice.call_one(port).get()
    assert receiver.recv().get(timeout=60) == 0


def test_a_once_port_that_timed_out_can_still_be_read() -> None:
    port, receiver = Channel[int].open(once=True)
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0)
    port.send(7)
    assert receiver.recv().get(timeout=60) == 7


def test_a_ranked_once_port_tells_who_answered(four: ProcMesh) -> None:
    port, receiver = Channel[int].open_ranked(once=True)
    send(four.spawn("sending", Sending).slice(gpus=slice(2, 3)).rank, (), {}, port)
    assert receiver.recv().get(timeout=60) == (0, 0)


def test_a_receiver_can_be_asked_who_sent(four: ProcMesh) -> None:
    port, receiver = Channel[int].open()
    send(four.spawn("sending", Sending).rank, (), {}, port)
    ranked = receiver.ranked()
    found = sorted(ranked.recv().get(timeout=60) for _ in range(3))
    last = receiver.recv().get(timeout=60)  # both read the same messages
    assert sorted([*found, (last, last)]) == [(rank, rank) for rank in range(4)]
    assert isinstance(ranked, type(receiver))


def test_what_one_way_of_reading_gave_up_the_other_has() -> None:
    port, receiver = Channel[int].open()
    ranked = receiver.ranked()
    for asks, other in ((receiver, ranked), (ranked, receiver)):
        with pytest.raises(TimeoutError):
            asks.recv().get(timeout=0)
        future = other.recv()
        port.send(5)
        assert future.get(timeout=60) == (5 if other is receiver else (0, 5))
        # It comes when nobody waits for it any more.
        future = asks.recv()
        with pytest.raises(TimeoutError):
            future.get(timeout=0)
        port.send(6)
        behind, last = Channel[int].open()
        behind.send(0)
        last.recv().get(timeout=60)
        assert future.done
        assert other.recv().get(timeout=60) == (6 if other is receiver else (0, 6))


def test_a_receiver_that_tells_ranks_keeps_its_port_open(four: ProcMesh) -> None:
    port, receiver = Channel[int].open()
    ranked = receiver.ranked()
    del receiver
    gc.collect()
    send(four.slice(gpus=1).spawn("sending", Sending).rank, (), {}, port)
    assert ranked.recv().get(timeout=60) == (0, 0)


def test_a_ranked_port_counts_ranks_in_the_slice_that_was_sent_to(grid: ProcMesh) -> None:
    port, receiver = Channel[int].open_ranked()
    send(grid.spawn("sending", Sending).slice(gpus=slice(1, 3)).rank, (), {}, port)
    found = sorted(receiver.recv().get(timeout=60) for _ in range(4))
    assert found == [(0, 0), (1, 1), (2, 2), (3, 3)]
