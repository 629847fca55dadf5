"""Ports, explicit answers, `send`, folds, and methods that are no endpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch import frontend
from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    Port,
    ProcMesh,
    SupervisionError,
    as_endpoint,
    current_rank,
    endpoint,
    send,
)
from tests.conftest import Faults


class Answering(Actor):
    """Answers through ports."""

    def __init__(self) -> None:
        self.kept: Port[Any] | None = None

    @endpoint(explicit_response_port=True)
    def plus_one(self, port: Port[int], number: int) -> None:
        port.send(number + 1)

    @endpoint(explicit_response_port=True)
    def keep(self, port: Port[str]) -> None:
        self.kept = port

    @endpoint
    def answer_kept(self, text: str) -> None:
        assert self.kept is not None
        self.kept.send(text)

    @endpoint(explicit_response_port=True)
    def give_exception(self, port: Port[int]) -> None:
        port.exception(KeyError("as it is"))

    @endpoint(explicit_response_port=True)
    def fail(self, port: Port[int]) -> None:
        raise ValueError("nobody answers for me")

    @endpoint
    def count_to(self, port: Port[tuple[int, int]], end: int) -> None:
        for number in range(end):
            port.send((current_rank().rank, number))

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def pass_on(self, other: Any, port: Port[int]) -> None:
        other.use.broadcast(port)

    @endpoint
    def use(self, port: Port[int]) -> None:
        port.send(current_rank().rank)

    def plain(self, number: int) -> int:
        return 10 * number + current_rank().rank


class AsyncAnswering(Actor):
    """The same on an event loop."""

    @endpoint(explicit_response_port=True)
    async def plus_one(self, port: Port[int], number: int) -> None:
        port.send(number + 1)

    async def plain(self, number: int) -> int:
        return 2 * number


@pytest.fixture(scope="module")
def answering(four: ProcMesh) -> Iterator[Answering]:
    mesh = four.spawn("answering", Answering)
    yield mesh
    mesh.stop().get(timeout=60)


@pytest.mark.parametrize("kind", [Answering, AsyncAnswering])
def test_an_endpoint_can_answer_through_a_port(four: ProcMesh, kind: type[Any]) -> None:
    mesh = four.spawn("by_port", kind)
    assert mesh.plus_one.call(1).get(timeout=60).values() == [2, 2, 2, 2]
    assert mesh.slice(gpus=3).plus_one.call_one(5).get(timeout=60) == 6
    mesh.stop().get(timeout=60)


def test_the_answer_may_come_after_the_endpoint_has_returned(answering: Answering) -> None:
    one = answering.slice(gpus=0)
    answer = one.keep.call_one()
    one.answer_kept.call_one("later").get(timeout=60)
    assert answer.get(timeout=60) == "later"


def test_an_exception_given_to_a_port_is_raised_as_it_is(answering: Answering) -> None:
    for call in (answering.give_exception.call, answering.slice(gpus=1).give_exception.call_one):
        with pytest.raises(KeyError, match="as it is"):
            call().get(timeout=60)


def test_an_endpoint_with_a_port_that_raises_ends_its_actor(four: ProcMesh, faults: Any) -> None:
    mesh = four.spawn("failing", Answering)
    with pytest.raises(SupervisionError, match="nobody answers for me"):
        mesh.slice(gpus=2).fail.call_one().get(timeout=60)
    assert mesh.slice(gpus=1).rank.call_one().get(timeout=60) == 0, "others live"
    assert "nobody answers for me" in faults.take().report()
    mesh.stop().get(timeout=60)


def test_what_each_rank_sends_to_a_port_arrives_in_its_order(answering: Answering) -> None:
    port, receiver = Channel[tuple[int, int]].open()
    answering.count_to.broadcast(port, 50)
    seen: dict[int, list[int]] = {}
    for _ in range(4 * 50):
        rank, number = receiver.recv().get(timeout=60)
        seen.setdefault(rank, []).append(number)
    assert seen == {rank: list(range(50)) for rank in range(4)}


def test_a_port_can_be_handed_from_actor_to_actor(answering: Answering) -> None:
    port, receiver = Channel[int].open()
    answering.slice(gpus=0).pass_on.call_one(answering.slice(gpus=3), port).get(timeout=60)
    assert receiver.recv().get(timeout=60) == 0, "alone in its slice"


def test_a_time_out_loses_no_message(answering: Answering) -> None:
    port, receiver = Channel[int].open()
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0)
    port.send(7)
    assert receiver.recv().get(timeout=60) == 7


def test_two_readers_of_a_port_get_a_message_each(answering: Answering) -> None:
    port, receiver = Channel[int].open()
    first, second = receiver.recv(), receiver.recv()
    port.send(1)
    port.send(2)
    assert [first.get(timeout=60), second.get(timeout=60)] == [1, 2]


def test_a_once_port_takes_one_message_and_is_read_once(answering: Answering) -> None:
    port, receiver = Channel[int].open(once=True)
    port.send(1)
    with pytest.raises(RuntimeError, match="takes one message"):
        port.send(2)
    assert receiver.recv().get(timeout=60) == 1
    with pytest.raises(RuntimeError, match="has been read"):
        receiver.recv()


def test_a_ranked_port_tells_who_answered(answering: Answering) -> None:
    port, receiver = Channel[int].open_ranked()
    send(answering.rank, (), {}, port)
    assert sorted(receiver.recv().get(timeout=60) for _ in range(4)) == [
        (0, 0), (1, 1), (2, 2), (3, 3),
    ]  # fmt: skip


def test_send_to_any_reaches_one(answering: Answering) -> None:
    port, receiver = Channel[int].open()
    send(answering.rank, (), {}, port, selection="choose")
    assert receiver.recv().get(timeout=60) == 0
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0)


def test_send_with_another_selection_is_refused(answering: Answering) -> None:
    with pytest.raises(ValueError, match="'all' or 'choose'"):
        send(answering.rank, (), {}, selection="some")  # type: ignore[arg-type]


def test_a_value_that_cannot_travel_is_refused_by_the_port(answering: Answering) -> None:
    port, _receiver = Channel[Any].open()
    with pytest.raises(TypeError, match="lock cannot be sent"):
        port.send(threading.Lock())


def test_what_is_sent_to_a_port_that_nobody_reads_any_more_is_a_failure_of_who_sent_it(
    spawn_procs: Callable[..., ProcMesh], faults: Faults
) -> None:
    answering = spawn_procs(name="lonely").spawn("answering", Answering)
    port, receiver = Channel[int].open()
    del receiver
    answering.use.broadcast(port)
    assert f"port {port.number} on client was not delivered" in faults.take().report()


def test_what_is_sent_unheeded_to_a_port_that_nobody_reads_is_dropped(
    spawn_procs: Callable[..., ProcMesh],
) -> None:
    answering = spawn_procs(name="careless").spawn("answering", Answering)
    port, receiver = Channel[int].open()
    careless = frontend.unheeded(port)
    answering.use.broadcast(careless)
    assert receiver.recv().get(timeout=60) == 0
    del receiver
    for _ in range(3):  # it would fail of the first one, and not answer the last
        answering.use.call_one(careless).get(timeout=60)


def test_an_accumulator_folds_every_answer(answering: Answering) -> None:
    ranks = Accumulator(answering.rank, 100, lambda total, rank: total + rank)
    assert ranks.accumulate().get(timeout=60) == 106


def test_an_accumulator_raises_what_a_rank_raises(answering: Answering) -> None:
    folded = Accumulator(as_endpoint(answering.plain), 0, lambda total, each: total + each)
    with pytest.raises(ActorError, match="TypeError"):
        folded.accumulate("text").get(timeout=60)


@pytest.mark.parametrize(
    ("kind", "values"), [(Answering, [30, 31, 32, 33]), (AsyncAnswering, [6] * 4)]
)
def test_as_endpoint_calls_a_method_that_is_not_marked(
    four: ProcMesh, kind: type[Any], values: list[int]
) -> None:
    mesh = four.spawn("plain", kind)
    assert as_endpoint(mesh.plain).call(3).get(timeout=60).values() == values
    mesh.stop().get(timeout=60)


def test_a_method_that_is_not_marked_says_how_to_call_it(answering: Answering) -> None:
    with pytest.raises(TypeError, match=r"mark it with @endpoint, or call it as as_endpoint"):
        answering.plain.call(3)  # type: ignore[attr-defined]


def test_as_endpoint_takes_nothing_else() -> None:
    with pytest.raises(ValueError, match="a method of an actor mesh"):
        as_endpoint(len)


def test_an_endpoint_with_a_port_must_take_it() -> None:
    with pytest.raises(TypeError, match="take it as the first parameter"):

        class _Wrong(Actor):
            @endpoint(explicit_response_port=True)  # type: ignore[arg-type]
            def answers(self) -> None: ...
