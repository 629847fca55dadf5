"""What an actor can say of itself: where it is, what it is called, who made it."""

from __future__ import annotations

import os
import pickle
from typing import Any

from monarch.actor import (
    Actor,
    ActorInstance,
    CreatorInstance,
    ProcId,
    ProcMesh,
    context,
    endpoint,
    get_or_spawn_controller,
)


def told(who: ActorInstance | CreatorInstance) -> dict[str, Any]:
    """All of it, as plain data."""
    return {
        "rank": dict(who.rank),
        "rank_number": who.rank.rank,
        "name": who.name,
        "class_name": who.class_name,
        "actor_id": who.actor_id,
        "proc_id": who.proc_id,
        "repr": repr(who),
    }


class Child(Actor):
    """Says who it is and who is above it."""

    @endpoint
    def line(self) -> list[dict[str, Any]]:
        found, who = [], context().actor_instance
        here: ActorInstance | CreatorInstance | None = who
        while here is not None:
            found.append(told(here))
            here = here.creator
        return found

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def pids_through_proc(self) -> tuple[int, int]:
        me = context().actor_instance
        assert me.creator is not None
        next_door = me.proc.spawn("next_door", Child)
        above = me.creator.proc.spawn("above", Child)
        return next_door.pid.call_one().get(), above.pid.call_one().get()

    @endpoint
    def creator(self) -> CreatorInstance | None:
        return context().actor_instance.creator


class Parent(Actor):
    """Makes children on procs that it is given."""

    @endpoint
    def line_of_child(self, procs: ProcMesh) -> list[dict[str, Any]]:
        return procs.spawn("child", Child).line.call_one().get(timeout=60)

    @endpoint
    def line_of_grandchild(self, procs: ProcMesh) -> list[dict[str, Any]]:
        return procs.spawn("parent", Parent).line_of_child.call_one(procs).get(timeout=60)

    @endpoint
    def pids(self, procs: ProcMesh) -> tuple[int, tuple[int, int]]:
        return os.getpid(), procs.spawn("c", Child).pids_through_proc.call_one().get(timeout=60)


def test_an_actor_knows_its_place_its_names_and_that_the_client_made_it(grid: ProcMesh) -> None:
    children = grid.slice(hosts=1).spawn("child", Child)
    me, client = children.slice(gpus=2).line.call_one().get()
    assert me["rank"] == {"gpus": 2}
    assert me["rank_number"] == 2
    assert (me["name"], me["class_name"]) == ("child", "Child")
    assert me["repr"] == "<client>.<Child child[gpus=2]>"
    assert me["proc_id"] == me["actor_id"].node == f"{grid.uid}.5"
    assert (client["name"], client["class_name"], client["rank"]) == ("client", "client", {})
    assert client["proc_id"] == context().actor_instance.proc_id


def test_the_id_of_a_proc_is_a_value_of_a_type_of_its_own(grid: ProcMesh) -> None:
    ids = [
        ProcId.from_string(line[0]["proc_id"])
        for line in grid.spawn("child", Child).line.call().get().values()
    ]
    assert len(set(ids)) == 6
    assert str(ids[4]) == f"{grid.uid}.4"


def test_an_actor_knows_which_actor_made_it_and_who_made_that(four: ProcMesh) -> None:
    parent = four.spawn("top", Parent).slice(gpus=3)
    line = parent.line_of_grandchild.call_one(four.slice(gpus=1)).get(timeout=60)
    assert [who["name"] for who in line] == ["child", "parent", "top", "client"]
    assert [who["class_name"] for who in line] == ["Child", "Parent", "Parent", "client"]
    assert [who["rank"] for who in line] == [{}, {}, {"gpus": 3}, {}]
    assert line[0]["repr"] == "<client>.<Parent top[gpus=3]>.<Parent parent>.<Child child>"
    places = [who["proc_id"].rpartition(".")[2] for who in line[:3]]
    assert places == ["1", "1", "3"]


def test_an_actor_can_spawn_beside_itself_and_beside_its_creator(four: ProcMesh) -> None:
    parent = four.spawn("top", Parent).slice(gpus=3)
    above, (mine, creators) = parent.pids.call_one(four.slice(gpus=1)).get(timeout=60)
    assert above == creators
    assert mine != creators
    child = four.slice(gpus=0).spawn("child", Child)
    # The client's process is one too.
    beside, beside_client = child.pids_through_proc.call_one().get(timeout=60)
    assert beside == child.pid.call_one().get()
    assert beside_client == os.getpid()


def test_what_an_actor_knows_of_its_creator_can_be_sent(four: ProcMesh) -> None:
    found = four.slice(gpus=0).spawn("child", Child).creator.call_one().get()
    assert found is not None
    assert found.actor_id == context().actor_instance.actor_id
    assert pickle.loads(pickle.dumps(found)).actor_id == found.actor_id


def test_nobody_has_made_the_client_or_a_controller(four: ProcMesh) -> None:
    me = context().actor_instance
    assert me.creator is None
    assert repr(me) == "<client>"
    assert me.proc.spawn("child", Child).pid.call_one().get() == os.getpid()
    controller = get_or_spawn_controller("knows", Child).get(timeout=60)
    assert controller.creator.call_one().get() is None
    (told_of,) = controller.line.call_one().get()
    assert told_of["name"] == "knows"


def test_an_actor_that_a_controller_made_knows_it(four: ProcMesh) -> None:
    controller = get_or_spawn_controller("makes", Parent).get(timeout=60)
    line = controller.line_of_child.call_one(four.slice(gpus=2)).get(timeout=60)
    assert [who["name"] for who in line[:2]] == ["child", "makes"]
    assert line[1]["proc_id"] == context().actor_instance.proc_id
