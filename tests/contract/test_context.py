"""Context: what an actor knows of itself, and how it ends itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Extent,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    get_or_spawn_controller,
)
from tests.conftest import Faults
from tests.integration.actors import Echo, Teller, append
from tests.integration.gates import Gate, GateKeeper

Spawn = Callable[..., ProcMesh]


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
            "creator": me.creator,
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
    def who_asks_and_who_made(self, other: Any) -> tuple[str, str]:
        return context().actor_instance.proc_id, other.facts.call_one().get()["creator"]

    @endpoint
    def spawn_and_ask(self) -> tuple[str, str]:
        made = context().actor_instance.proc.spawn("made", Knowing)
        return context().actor_instance.proc_id, made.facts.call_one().get()["creator"]


# --- what it knows --------------------------------------------------------------------------------


def test_an_actor_knows_its_place_in_the_mesh_it_was_spawned_in(grid: ProcMesh) -> None:
    part = grid.slice(hosts=1, gpus=slice(1, 3)).spawn("knowing", Knowing)
    facts = part.facts.call().get().values()
    assert [f["rank"] for f in facts] == [{"gpus": 0}, {"gpus": 1}]
    assert facts[0]["extent"] == Extent(["gpus"], [2])
    assert facts[1]["in_constructor"] == ({"gpus": 1}, "knowing", {"gpus": 1})
    assert facts[1]["name"] == "knowing"
    assert facts[1]["current_actor_name"] == "knowing{'gpus': 1}"


def test_the_rank_of_a_message_is_that_in_the_slice_it_was_sent_to(grid: ProcMesh) -> None:
    knowing = grid.spawn("knowing", Knowing)
    (facts,) = knowing.slice(hosts=1, gpus=slice(2, 3)).facts.call().get().values()
    assert facts["rank"] == {"hosts": 1, "gpus": 2}
    assert facts["current_rank"] == facts["message_rank"]
    assert (facts["current_rank"].rank, dict(facts["current_rank"])) == (0, {"gpus": 0})
    assert facts["current_size"] == Extent(["gpus"], [1])
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


def test_an_actor_knows_who_made_it(four: ProcMesh) -> None:
    me = context().actor_instance
    knowing = four.slice(gpus=0).spawn("knowing", Knowing)
    assert knowing.facts.call_one().get()["creator"] == me.proc_id
    parent, creator = knowing.spawn_and_ask.call_one().get()
    assert creator == parent != me.proc_id


def test_an_actor_spawns_on_its_own_proc(four: ProcMesh) -> None:
    for mine, neighbours, dims in four.spawn("k", Knowing).pid_next_door.call().get().values():
        assert mine == neighbours
        assert dims == {}


def test_the_client_is_an_actor_on_a_proc_of_its_own() -> None:
    me = context().actor_instance
    assert (me.name, dict(me.rank), me.creator) == ("client", {}, "")
    assert me.proc_id in str(me.actor_id)
    assert (dict(me.proc.extent), len(me.proc)) == ({}, 1)
    neighbour = me.proc.spawn("neighbour", Teller)
    assert neighbour.pid.call_one().get(timeout=60) == os.getpid()
    neighbour.stop().get(timeout=60)


def test_a_controller_knows_the_proc_of_the_client(four: ProcMesh) -> None:
    controller = get_or_spawn_controller("knowing", Knowing).get(timeout=60)
    mine, neighbours, dims = controller.pid_next_door.call_one().get(timeout=60)
    assert mine == neighbours == os.getpid()
    assert dims == {}


# --- how it ends itself ---------------------------------------------------------------------------


class Ending(Actor):
    """Ends itself, in the middle of an endpoint."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def end(self, how: str, reason: str | None, gate: Gate | None = None) -> str:
        if gate is not None:
            gate.pass_through()
        getattr(context().actor_instance, how)(reason)
        return "answered"

    @endpoint
    def note(self, text: str) -> str:
        append(self.path, text)
        return text

    def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, f"cleaned up after {exception!r}")


class AsyncEnding(Actor):
    """The same on an event loop."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    async def end(self, how: str, reason: str | None, gate: Gate | None = None) -> str:
        if gate is not None:
            await asyncio.to_thread(gate.pass_through)
        getattr(context().actor_instance, how)(reason)
        return "answered"

    @endpoint
    async def note(self, text: str) -> str:
        append(self.path, text)
        return text

    async def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, f"cleaned up after {exception!r}")


class OverlappingEnding(Actor):
    """The same, where calls overlap."""

    def __init__(self, path: str) -> None:
        self.path = path

    @concurrent_endpoint
    async def end(self, how: str, reason: str | None) -> str:
        getattr(context().actor_instance, how)(reason)
        return "answered"

    @endpoint
    async def note(self, text: str) -> str:
        append(self.path, text)
        return text

    async def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, f"cleaned up after {exception!r}")


KINDS = [Ending, AsyncEnding, OverlappingEnding]


@pytest.fixture
def two(spawn_procs: Spawn) -> ProcMesh:
    """Two procs, of which actors may die."""
    return spawn_procs({"gpus": 2}, name="two")


@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_that_stops_itself_answers_cleans_up_and_has_not_failed(
    two: ProcMesh, kind: type[Any], tmp_path: Path
) -> None:
    path = tmp_path / "said"
    mesh = two.spawn("ending", kind, str(path))
    assert mesh.slice(gpus=1).end.call_one("stop", "all is done").get() == "answered"
    with pytest.raises(SupervisionError, match=r"two\[gpus=1\] was stopped: all is done"):
        mesh.slice(gpus=1).note.call_one("too late").get(timeout=60)
    assert path.read_text() == "cleaned up after None\n"
    assert mesh.slice(gpus=0).note.call_one("alive").get() == "alive"
    assert two.spawn("echo", Echo).rank.call().get().values() == [0, 1], "no failure, no refusal"


@pytest.mark.parametrize("kind", [Ending, AsyncEnding])
def test_what_came_before_an_actor_stopped_itself_is_done(
    two: ProcMesh, kind: type[Any], tmp_path: Path, gate: GateKeeper
) -> None:
    path = tmp_path / "said"
    mesh = two.slice(gpus=0).spawn("ending", kind, str(path))
    neighbour = two.slice(gpus=0).spawn("echo", Echo)
    held = mesh.end.call_one("stop", None, gate.gate)
    gate.wait_entered()
    before = [mesh.note.call_one(f"before {number}") for number in range(3)]
    neighbour.nothing.call_one().get()  # came to that process behind them
    gate.open()
    assert held.get() == "answered"
    with pytest.raises(SupervisionError, match="was stopped: stopped by itself"):
        mesh.note.call_one("after").get(timeout=60)
    assert [answer.get() for answer in before] == [f"before {number}" for number in range(3)]
    assert path.read_text().splitlines() == [
        "before 0", "before 1", "before 2", "cleaned up after None",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["abort", "kill"])
def test_an_actor_that_aborts_itself_answers_cleans_up_and_has_failed(
    two: ProcMesh, faults: Faults, kind: type[Any], how: str, tmp_path: Path
) -> None:
    path = tmp_path / "said"
    mesh = two.spawn("ending", kind, str(path))
    assert mesh.slice(gpus=1).end.call_one(how, "no more data").get() == "answered"
    fault = faults.take()
    assert fault.mesh_name == "ending"
    said = f"{kind.__name__} on two[gpus=1] died of Aborted: no more data"
    assert said in fault.report()
    with pytest.raises(SupervisionError) as caught:
        mesh.slice(gpus=1).note.call_one("too late").get(timeout=60)
    assert str(caught.value) == said
    assert path.read_text() == "cleaned up after Aborted('no more data')\n"
    assert mesh.slice(gpus=0).note.call_one("alive").get() == "alive"
    with pytest.raises(SupervisionError, match="no more data"):
        two.spawn("echo", Echo)


@pytest.mark.parametrize("kind", [Ending, AsyncEnding])
def test_what_waits_behind_an_abort_is_told_of_it(
    two: ProcMesh, faults: Faults, kind: type[Any], tmp_path: Path, gate: GateKeeper
) -> None:
    path = tmp_path / "said"
    mesh = two.slice(gpus=0).spawn("ending", kind, str(path))
    held = mesh.end.call_one("abort", None, gate.gate)
    gate.wait_entered()
    behind = [mesh.note.call_one(f"never {number}") for number in range(3)]
    gate.open()
    assert held.get() == "answered"
    for answer in behind:
        with pytest.raises(SupervisionError, match="died of Aborted: it gave no reason"):
            answer.get(timeout=60)
    faults.take()
    assert "never" not in path.read_text()


def test_the_client_is_not_ended_by_its_own_instance() -> None:
    me = context().actor_instance
    for end in (me.stop, me.abort, me.kill):
        with pytest.raises(RuntimeError, match=r"ended by shutdown_context\(\)"):
            end("enough")
