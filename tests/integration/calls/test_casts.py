"""A mesh of many ranks is called through its host agent; nobody can tell, but by the cost."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._src.actor.deliver import routes
from monarch._src.wire.segment_refs import SEGMENT_FROM
from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    ProcMesh,
    SupervisionError,
    current_rank,
    endpoint,
    send,
    this_host,
)
from monarch.observe import metrics
from tests.integration.callers import Ring, Spawner
from tests.integration.failing_actors import Failing, Faulty
from tests.integration.gates import Gate, GateKeeper
from tests.integration.sample_actors import Echo, Recorder, Teller

MANY = 40
SEEDS = int(os.environ.get("MONARCH_ORDER_ROUNDS", "1"))


@pytest.fixture(scope="module")
def many(agent_errors: object) -> Iterator[ProcMesh]:
    """Forty procs, `hosts` 0 to 3 by `gpus` 0 to 9: more than are called one by one."""
    assert MANY > routes.CAST_FROM
    mesh = this_host().spawn_procs({"hosts": 4, "gpus": 10}, name="many")
    yield mesh
    mesh.stop().get(timeout=60)


class Answering(Actor):
    """Answers in ways that matter to who gathers answers."""

    @endpoint
    def bytes_of(self, sizes: dict[int, int]) -> bytes:
        return b"x" * sizes.get(current_rank().rank, 1)

    @endpoint
    def hold_unless(self, rank: int, gate: Gate) -> None:
        if current_rank().rank == rank:
            raise ValueError(f"rank {rank} does not wait")
        gate.pass_through()

    @endpoint(explicit_response_port=True)
    def by_port(self, port: Port[int]) -> None:
        port.send(current_rank().rank)


def test_answers_come_in_rank_order_with_the_place_in_the_slice(many: ProcMesh) -> None:
    echo = many.spawn("echo", Echo)
    assert echo.rank.call().get().values() == list(range(MANY))
    part = echo.slice(hosts=slice(0, 4), gpus=slice(1, 10))
    assert len(part) > routes.CAST_FROM
    found = part.rank.call().get()
    assert found.values() == list(range(36))
    assert [dict(point) for point, _ in found.items()][9] == {"hosts": 1, "gpus": 0}


def test_values_that_can_be_changed_are_each_ranks_own(many: ProcMesh) -> None:
    values = many.spawn("echo", Echo).same.call([1, 2]).get().values()
    values[0].append(3)
    assert values[1:] == [[1, 2]] * (MANY - 1)


def test_a_stream_gives_what_has_come_while_others_still_work(
    many: ProcMesh, gate: GateKeeper
) -> None:
    echo = many.spawn("faulty", Faulty)
    futures = echo.hold_on.stream([0, 5, 39], gate.gate)
    early = [next(futures).get(timeout=60) for _ in range(MANY - 3)]
    assert sorted(early) == [rank for rank in range(MANY) if rank not in (0, 5, 39)]
    gate.open(3)
    assert sorted(future.get(timeout=60) for future in futures) == [0, 5, 39]


def test_who_has_not_answered_is_known_while_the_others_have(
    many: ProcMesh, gate: GateKeeper
) -> None:
    future = many.spawn("faulty", Faulty).hold_on.call([5, 39], gate.gate)
    gate.wait_entered(2)
    said = ""
    while "(2 of 40 ranks)" not in said:
        with pytest.raises(TimeoutError) as error:
            future.get(timeout=0.01)
        said = str(error.value)
    assert "Faulty.hold_on on many, [hosts=0, gpus=5], [hosts=3, gpus=9] (2 of 40 ranks)" in said
    gate.open(2)
    assert future.get(timeout=60).values() == list(range(MANY))


def test_an_error_is_told_while_others_still_work(many: ProcMesh, gate: GateKeeper) -> None:
    answering = many.spawn("answering", Answering)
    with pytest.raises(ActorError, match="rank 7 does not wait"):
        answering.hold_unless.call(7, gate.gate).get(timeout=60)
    gate.open(MANY - 1)
    assert answering.bytes_of.call({}).get(timeout=60).values() == [b"x"] * MANY


def test_all_that_raise_alike_are_told_together(many: ProcMesh) -> None:
    failing = many.spawn("failing", Failing)
    with pytest.raises(ActorError) as caught:
        failing.raise_value_error.call("alike").get(timeout=60)
    failing.fine.call().get(timeout=60)  # behind it: by now every rank has told
    told = [(failure.rank, failure.message) for failure in caught.value.failures]
    assert sorted(told) == [(rank, "alike") for rank in range(MANY)]


@pytest.mark.parametrize("sizes", [{3: 5_000_000}, dict.fromkeys(range(MANY), 100_000)])
def test_large_answers_find_their_way(many: ProcMesh, sizes: dict[int, int]) -> None:
    answering = many.spawn("answering", Answering)
    found = [len(value) for value in answering.bytes_of.call(sizes).get(timeout=60).values()]
    assert found == [sizes.get(rank, 1) for rank in range(MANY)]


@pytest.mark.parametrize("size", [1, 40_000, 60_000, 70_000, 3_000_000])
def test_arguments_of_any_size_reach_all(many: ProcMesh, size: int) -> None:
    echo = many.spawn("echo", Echo)
    assert echo.length.call(b"x" * size).get(timeout=60).values() == [size] * MANY


def test_answers_through_ports_find_their_way(many: ProcMesh) -> None:
    answering = many.spawn("answering", Answering)
    assert answering.by_port.call().get(timeout=60).values() == list(range(MANY))
    port, receiver = Channel[Any].open_ranked()
    send(many.spawn("echo", Echo).rank, (), {}, port=port)
    found = sorted(receiver.recv().get(timeout=60) for _ in range(MANY))
    assert found == [(rank, rank) for rank in range(MANY)]


def test_an_actor_may_call_a_mesh_that_it_does_not_own_and_is_a_part_of(many: ProcMesh) -> None:
    echo, ring = many.spawn("echo", Echo), many.spawn("ring", Ring)
    asked = ring.slice(hosts=2, gpus=3)
    assert asked.ask_all.call_one(echo, "hello").get(timeout=60) == ["hello"] * MANY


def test_a_cast_may_come_before_the_mesh_that_it_is_for(many: ProcMesh) -> None:
    ring = many.spawn("ring", Ring).slice(hosts=1, gpus=1)
    ring.who.call_one().get(timeout=60)
    for _ in range(3):
        procs = this_host().spawn_procs({"gpus": MANY})
        echo = procs.spawn("echo", Echo)
        assert ring.ask_all.call_one(echo, 7).get(timeout=60) == [7] * MANY
        procs.stop().get(timeout=60)


def test_actors_may_spawn_and_stop_large_meshes(many: ProcMesh) -> None:
    spawner = many.spawn("spawner", Spawner).slice(hosts=0, gpus=0)
    assert len(set(spawner.spawn.call_one(MANY).get(timeout=60))) == MANY
    spawner.stop_children.call_one().get(timeout=60)


def test_an_actor_mesh_stops_everywhere_behind_what_it_was_sent(many: ProcMesh) -> None:
    recorder = many.spawn("recorder", Recorder)
    answers = [recorder.note.call(number) for number in range(20)]
    recorder.stop().get(timeout=60)
    assert [answer.get(timeout=60).values() for answer in answers] == [
        [number] * MANY for number in range(20)
    ]
    assert len(many.spawn("teller", Teller).pid.call().get(timeout=60).values()) == MANY


def test_a_rank_that_dies_fails_the_call_that_it_owes_and_no_other(
    few_are_many: None, gate: GateKeeper, faults: Any
) -> None:
    procs = this_host().spawn_procs({"gpus": 16}, name="doomed")
    faulty = procs.spawn("faulty", Faulty)
    done = faulty.pid.call().get(timeout=60)
    held = faulty.hold_on.call([7], gate.gate)
    gate.wait_entered()
    os.kill(done.values()[7], signal.SIGKILL)
    answered = [faulty.slice(gpus=slice(8, 16)).pid.call() for _ in range(3)]
    with pytest.raises(SupervisionError, match="SIGKILL"):
        held.get(timeout=60)
    for answer in answered:
        assert answer.get(timeout=60).values() == done.values()[8:]
    with pytest.raises(SupervisionError):
        faulty.pid.broadcast()
    with pytest.raises(SupervisionError):
        faulty.pid.call().get(timeout=60)
    procs.stop().get(timeout=60)


def test_what_was_asked_before_a_stop_is_answered_by_all(few_are_many: None) -> None:
    procs = this_host().spawn_procs({"gpus": 8}, name="leaving")
    echo = procs.spawn("echo", Echo)
    answers = [echo.same.call(number) for number in range(20)]
    stopped = procs.stop()
    for number, answer in enumerate(answers):
        assert answer.get(timeout=60).values() == [number] * 8
    stopped.get(timeout=60)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_messages_of_both_routes_are_taken_in_the_order_sent(many: ProcMesh, seed: int) -> None:
    recorder = many.spawn("recorder", Recorder)
    draw = random.Random(seed)
    ways = set[bool]()
    expected: list[list[int]] = [[] for _ in range(MANY)]
    answers: list[Any] = []
    for number in range(1500):
        hosts = slice(0, 4) if draw.random() < 0.7 else slice(draw.randrange(4), 4)
        gpus = slice(0, 10) if draw.random() < 0.7 else draw.randrange(10)
        part = recorder.slice(hosts=hosts, gpus=gpus)
        ranks = [
            h * 10 + g
            for h in range(4)[hosts]
            for g in ([gpus] if isinstance(gpus, int) else range(10))
        ]
        ways.add(len(ranks) >= routes.CAST_FROM)
        how = draw.randrange(4)
        if how == 0:
            part.note.broadcast(number)
        elif how == 1:
            answers.append(part.note.call(number))
        elif how == 2:
            answers += part.note_too.stream(number)
        else:
            rank = draw.randrange(MANY)
            ranks = [rank]
            answers.append(recorder.slice(hosts=rank // 10, gpus=rank % 10).note.call_one(number))
        for rank in ranks:
            expected[rank].append(number)
    assert ways == {True, False}
    assert recorder.take.call().get(timeout=120).values() == expected
    assert all(answer.exception(timeout=60) is None for answer in answers)


def test_what_is_relayed_is_counted_like_what_is_not(many: ProcMesh) -> None:
    echo, failing = many.spawn("counted", Echo), many.spawn("counted_too", Failing)
    for value in (1, "text", b"x" * 2 * routes.GATHERED_LIMIT, b"x" * 2 * SEGMENT_FROM):
        echo.same.call(value).get()
    assert failing.raise_on.call([3, 17]).exception() is not None
    assert len(failing.raise_on.call([]).get()) == MANY
    echo.same.broadcast("x")
    echo.nothing.call().get()  # behind it
    rows = {
        (row.endpoint, row.adverb): row
        for mesh in (echo, failing)
        for row in metrics(mesh, timeout=60).endpoints
    }
    ran, called, cast = (rows["same", adverb] for adverb in (None, "call", "broadcast"))
    assert (ran.calls, called.calls, cast.calls) == (5 * MANY, 4, 1)
    assert ran.bytes_in == called.bytes_out + cast.bytes_out
    assert ran.bytes_out == called.bytes_in
    ran, called = rows["raise_on", None], rows["raise_on", "call"]
    assert (ran.calls, ran.errors) == (2 * MANY, 2)
    assert (called.calls, called.errors, called.in_flight) == (2, 1, 0)
    assert called.bytes_in == ran.bytes_out
