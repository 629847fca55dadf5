"""Context: what an actor knows of itself."""

from __future__ import annotations

import os
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Extent,
    ProcMesh,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
)
from tests.integration.sample_actors import Teller


class Knowing(Actor):
    """Knows itself."""

    def __init__(self) -> None:
        me = context().actor_instance
        self.in_constructor = (dict(me.rank), me.name, dict(context().message_rank))

    @endpoint
    def facts(self) -> dict[str, Any]:
        me = context().actor_instance
        return {
            "rank": dict(me.rank),
            "extent": me.rank.extent,
            "name": me.name,
            "actor_id": str(me.actor_id),
            "proc_id": me.proc_id,
            "current_actor_name": current_actor_name(),
            "current_rank": current_rank(),
            "message_rank": context().message_rank,
            "current_size": current_size(),
            "in_constructor": self.in_constructor,
        }

    @endpoint
    def pid_next_door(self) -> tuple[int, int, dict[str, int]]:
        here = context().actor_instance.proc
        neighbour = here.spawn("neighbour", Teller)
        pid = neighbour.pid.call_one().get()
        neighbour.stop().get()
        return os.getpid(), pid, dict(here.extent)

    @endpoint
    def pids_of_its_mesh(self, part: dict[str, int]) -> tuple[dict[str, int], int, list[int]]:
        """The extent of its proc mesh, that of its creator's, and pids of a part of its own."""
        me = context().actor_instance
        creator = me.creator
        assert creator is not None
        mesh = me.proc_mesh.slice(**part)
        teller = mesh.spawn("of_a_member", Teller)
        pids = teller.pid.call().get().values()
        teller.stop().get()
        return dict(me.proc_mesh.extent), len(creator.proc_mesh), pids


def test_an_actor_knows_its_place_in_the_mesh_it_was_spawned_in(grid: ProcMesh) -> None:
    part = grid.slice(hosts=1, gpus=slice(1, 3)).spawn("knowing", Knowing)
    facts = part.facts.call().get().values()
    assert [f["rank"] for f in facts] == [{"gpus": 0}, {"gpus": 1}]
    assert facts[0]["extent"] == Extent(["gpus"], [2])
    assert facts[1]["in_constructor"] == ({"gpus": 1}, "knowing", {"gpus": 1})
    assert facts[1]["name"] == "knowing"
    assert facts[1]["current_actor_name"] == "knowing{'gpus': 1}"


def test_an_actor_spawns_on_the_whole_mesh_that_it_lives_on(grid: ProcMesh) -> None:
    knowing = grid.slice(hosts=1).spawn("knowing", Knowing)
    extent, of_creator, pids = knowing.slice(gpus=2).pids_of_its_mesh.call_one({"hosts": 0}).get()
    assert (extent, of_creator) == (dict(grid.extent), 1)
    others = grid.slice(hosts=0).spawn("teller", Teller)
    assert pids == others.pid.call().get().values()
    with pytest.raises(ValueError, match="only its owner may stop it"):
        context().actor_instance.proc_mesh.stop()


def test_the_rank_of_a_message_is_that_in_the_slice_it_was_sent_to(grid: ProcMesh) -> None:
    knowing = grid.spawn("knowing", Knowing)
    (facts,) = knowing.slice(hosts=1, gpus=slice(2, 3)).facts.call().get().values()
    assert facts["rank"] == {"hosts": 1, "gpus": 2}
    assert facts["current_rank"] == facts["message_rank"]
    assert (facts["current_rank"].rank, dict(facts["current_rank"])) == (0, {"gpus": 0})
    assert facts["current_size"] == {"gpus": 1}
    assert type(facts["current_size"]) is dict
    alone = knowing.slice(hosts=1, gpus=2).facts.call_one().get()
    assert (dict(alone["current_rank"]), dict(alone["current_size"])) == ({}, {})
    renamed = knowing.rename(hosts="nodes").flatten("all").facts.call().get().get(5)
    assert (renamed["current_rank"].rank, dict(renamed["current_rank"])) == (5, {"all": 5})


def test_ids_tell_actors_and_processes_apart(four: ProcMesh) -> None:
    one, two = four.spawn("one", Knowing), four.spawn("two", Knowing)
    facts = [*one.facts.call().get().values(), *two.facts.call().get().values()]
    assert len({f["actor_id"] for f in facts}) == 8
    assert len({f["proc_id"] for f in facts}) == 4
    assert [f["proc_id"] for f in facts[:4]] == [f["proc_id"] for f in facts[4:]]


def test_an_actor_spawns_on_its_own_proc(four: ProcMesh) -> None:
    for mine, neighbours, dims in four.spawn("k", Knowing).pid_next_door.call().get().values():
        assert mine == neighbours
        assert dims == {}


class Ending(Actor):
    """Tries to end itself."""

    @endpoint
    def end(self, how: str, reason: Any) -> None:
        getattr(context().actor_instance, how)(reason)

    @endpoint
    def fine(self) -> str:
        return "fine"


@pytest.mark.parametrize("how", ["stop", "abort", "kill"])
def test_a_reason_that_is_no_text_is_refused_and_ends_nobody(four: ProcMesh, how: str) -> None:
    ending = four.spawn("ending", Ending)
    with pytest.raises(ActorError, match="TypeError: reason=3: give text, or None"):
        ending.end.call(how, 3).get(timeout=60)
    assert ending.fine.call().get().values() == ["fine"] * 4
