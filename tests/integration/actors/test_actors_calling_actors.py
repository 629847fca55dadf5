"""Actors call actors: meshes as arguments, every rank to every rank, neighbours on one proc."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import ActorError, ProcMesh, SupervisionError
from tests.integration.callers import AsyncRing, Ring, Spawner
from tests.integration.failing_actors import Failing
from tests.integration.sample_actors import Arrays, Counter, Echo, Teller

Spawn = Callable[..., ProcMesh]


def test_an_actor_calls_the_mesh_it_was_given(four: ProcMesh) -> None:
    ring, echo = four.spawn("ring", Ring), four.spawn("echo", Echo)
    assert ring.ask.call(echo.slice(gpus=2), "hello").get().values() == ["hello"] * 4


def test_every_rank_calls_every_rank(four: ProcMesh) -> None:
    ring, echo = four.spawn("ring", Ring), four.spawn("echo", Echo)
    for _ in range(5):
        answers = ring.ask_all.call(echo, ("a", 1)).get().values()
        assert answers == [[("a", 1)] * 4] * 4


def test_every_rank_streams_from_every_rank(four: ProcMesh) -> None:
    ring, echo = four.spawn("ring", Ring), four.spawn("echo", Echo)
    assert ring.stream_of.call(echo).get().values() == [[0, 1, 2, 3]] * 4


def test_every_rank_calls_every_rank_of_a_mesh_as_it_comes_up(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 8})
    ring, echo = procs.spawn("ring", Ring), procs.spawn("echo", Echo)
    assert ring.stream_of.call(echo).get(timeout=60).values() == [list(range(8))] * 8


def test_a_slice_stays_a_slice_on_its_way_to_another_actor(grid: ProcMesh) -> None:
    ring, teller = grid.spawn("ring", Ring), grid.spawn("teller", Teller)
    part = teller.slice(hosts=1, gpus=slice(1, 3))
    found = ring.slice(hosts=0, gpus=0).who_do_you_reach.call_one(part).get()
    assert found == [(0, 4), (1, 5)]


def test_an_async_actor_awaits_sync_ones(four: ProcMesh) -> None:
    ring, echo = four.spawn("ring", AsyncRing), four.spawn("echo", Echo)
    answers = ring.ask_all.call(echo, [1, "two", None]).get().values()
    assert answers == [[[1] * 4, ["two"] * 4, [None] * 4]] * 4


def test_an_async_actor_gathers_many_answers(four: ProcMesh) -> None:
    ring, echo = four.spawn("ring", AsyncRing), four.spawn("echo", Echo)
    answers = ring.gathered.call(echo.slice(gpus=1), 100).get().values()
    assert answers == [list(range(100))] * 4


def test_actors_of_one_proc_call_each_other(four: ProcMesh) -> None:
    one = four.slice(gpus=0)
    ring, echo, counter = (
        one.spawn("ring", Ring),
        one.spawn("echo", Echo),
        one.spawn("counter", Counter),
    )
    assert ring.ask.call_one(echo, "neighbour").get() == "neighbour"
    assert one.spawn("async", AsyncRing).gathered.call_one(echo, 20).get() == list(range(20))
    assert counter.add.call_one(2).get() == 2


def test_an_actor_spawns_a_neighbour_on_its_own_proc(four: ProcMesh) -> None:
    ring = four.spawn("ring", Ring)
    for mine, neighbours in ring.neighbour_on_this_proc.call().get(timeout=60).values():
        assert mine == neighbours


def test_an_array_for_a_neighbour_on_the_same_proc_is_a_copy(four: ProcMesh) -> None:
    one = four.slice(gpus=3)
    ring, arrays = one.spawn("ring", Ring), one.spawn("arrays", Arrays)
    for count in (10, 100_000):
        mine, theirs, writable = ring.arrays_of_neighbour.call_one(arrays, count).get()
        assert (mine, theirs, writable) == (0.0, count, True)


def test_a_reference_can_be_called_but_only_the_owner_may_stop(four: ProcMesh) -> None:
    ring, echo = four.spawn("ring", Ring), four.spawn("echo", Echo)
    for mesh in (echo, four):
        said = ring.slice(gpus=0).try_to_stop.call_one(mesh).get()
        assert "was spawned elsewhere; only its owner may stop it" in said
    assert echo.rank.call().get().values() == [0, 1, 2, 3]


def test_a_reference_that_comes_back_is_the_same_mesh(four: ProcMesh) -> None:
    echo, counter = four.spawn("echo", Echo), four.spawn("counter", Counter)
    back = echo.slice(gpus=0).same.call_one(counter.slice(gpus=slice(1, 3))).get()
    back.add.call(7).get()
    assert counter.value_now.call().get().values() == [0, 7, 7, 0]
    again = pickle.loads(pickle.dumps(counter))
    assert again.value_now.call().get().values() == [0, 7, 7, 0]


def test_a_reference_to_a_stopped_mesh_fails_at_once(spawn_procs: Spawn, four: ProcMesh) -> None:
    procs = spawn_procs({"gpus": 2}, name="short-lived")
    echo = procs.spawn("echo", Echo)
    reference = pickle.loads(pickle.dumps(echo))
    ring = four.slice(gpus=0).spawn("ring", Ring)
    assert ring.ask_all.call_one(echo, 1).get() == [1, 1]
    procs.stop().get(timeout=60)
    with pytest.raises(SupervisionError, match=r"short-lived.* was stopped"):
        reference.rank.call().get(timeout=60)
    with pytest.raises(ActorError) as caught:
        ring.ask_all.call_one(reference, 1).get(timeout=60)
    assert isinstance(caught.value.exception, SupervisionError)
    fresh = four.slice(gpus=1).spawn("ring", Ring)  # has never called it before
    with pytest.raises(ActorError, match="was stopped"):
        fresh.ask_all.call_one(reference, 1).get(timeout=60)


def test_an_error_two_calls_away_names_the_actor_that_raised_it(four: ProcMesh) -> None:
    ring, failing = four.spawn("ring", Ring), four.spawn("failing", Failing)
    inner = failing.slice(gpus=3)
    seen = ring.slice(gpus=0).what_went_wrong.call_one(inner).get()
    assert isinstance(seen, ActorError)
    assert isinstance(seen.exception, ValueError)
    assert seen.failures[0].point == {"gpus": 3}
    with pytest.raises(ActorError) as caught:
        ring.slice(gpus=0).let_it_escape.call_one(inner).get()
    assert caught.value.failures[0].endpoint == "let_it_escape"
    assert caught.value.failures[0].exception_type == "ActorError"
    assert "Failing.raise_value_error" in str(caught.value)
    assert isinstance(caught.value.exception, ActorError)


def test_an_actor_owns_the_procs_it_spawns(spawn_procs: Spawn) -> None:
    spawner = spawn_procs().spawn("spawner", Spawner)
    pids = spawner.spawn.call_one(3).get(timeout=60)
    assert len(set(pids)) == 3
    children = spawner.children_mesh.call_one().get()
    assert children.pid.call().get().values() == pids
    with pytest.raises(ValueError, match="only its owner may stop it"):
        children.stop()
    spawner.stop_children.call_one().get(timeout=60)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
