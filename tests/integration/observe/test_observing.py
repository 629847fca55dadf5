"""Snapshots: what each rank does now, answered while every rank computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import ProcMesh, shutdown_context
from monarch.observe import MeshSnapshot, meshes, on_change, snapshot
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Counter, Echo, Teller

Spawn = Callable[..., ProcMesh]


def of(mesh: ProcMesh) -> MeshSnapshot:
    """The snapshot of that mesh."""
    (found,) = [seen for seen in snapshot() if seen.uid == mesh.uid]
    return found


def test_an_idle_mesh_shows_its_ranks_pids_and_actors(grid: ProcMesh) -> None:
    grid.spawn("counter", Counter).add.call().get()
    pids = grid.spawn("teller", Teller).pid.call().get().values()
    seen = of(grid)
    assert (seen.name, seen.state, seen.sizes) == ("grid", "ready", {"hosts": 2, "gpus": 3})
    assert seen.actors == ("counter", "teller")
    assert seen.age_s > 0
    assert [row.rank for row in seen.rows] == list(range(6))
    assert [row.point for row in seen.rows] == [
        {"hosts": h, "gpus": g} for h in range(2) for g in range(3)
    ]
    assert [row.pid for row in seen.rows] == pids
    for row in seen.rows:
        assert row.state == "idle"
        assert row.actor is None
        assert row.endpoint is None
        assert row.failure is None
        assert row.messages >= 2
        assert row.rss_mib is not None
        assert row.rss_mib > 1
        assert row.cpu_s is not None
        assert (row.gpu_mib is None) == (row.gpu_percent is None)


def test_a_busy_rank_shows_its_endpoint_and_since_when(four: ProcMesh, gate: GateKeeper) -> None:
    echo = four.spawn("echo", Echo)
    echo.nothing.call().get()
    answer = echo.slice(gpus=2).pass_gate.call_one(gate.gate)
    gate.wait_entered()
    first, second = of(four).rows[2], of(four).rows[2]
    assert (first.state, first.actor, first.endpoint) == ("busy", "Echo", "pass_gate")
    assert 0 <= first.since_s <= second.since_s
    assert [row.state for row in of(four).rows] == ["idle", "idle", "busy", "idle"]
    gate.open()
    answer.get()
    assert [row.state for row in of(four).rows] == ["idle"] * 4


def test_where_endpoints_overlap_the_one_that_still_runs_is_shown(
    four: ProcMesh, gate: GateKeeper
) -> None:
    echo, counter = four.spawn("echo", Echo), four.spawn("counter", Counter)
    answer = echo.slice(gpus=1).pass_gate.call_one(gate.gate)
    gate.wait_entered()
    for _ in range(3):
        counter.add.call().get()
        row = of(four).rows[1]
        assert (row.state, row.actor, row.endpoint) == ("busy", "Echo", "pass_gate")
    gate.open()
    answer.get()


def test_a_mesh_that_is_up_for_its_owner_is_up_for_who_looks(spawn_procs: Spawn) -> None:
    for _ in range(5):
        procs = spawn_procs({"gpus": 4})
        procs.initialized.get(timeout=60)
        assert of(procs).state == "ready"
        assert [row.state for row in of(procs).rows] == ["idle"] * 4


def test_a_snapshot_is_answered_while_every_rank_is_busy_and_from_any_thread(
    four: ProcMesh, gate: GateKeeper
) -> None:
    answer = four.spawn("echo", Echo).pass_gate.call(gate.gate)
    gate.wait_entered(4)
    seen: list[MeshSnapshot] = []
    threads = [threading.Thread(target=lambda: seen.append(of(four))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [[row.state for row in found.rows] for found in seen] == [["busy"] * 4] * 3
    gate.open(4)
    answer.get()


def test_messages_are_counted(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2})
    counter = procs.spawn("counter", Counter)
    for _ in range(7):
        counter.add.call().get()
    counter.slice(gpus=1).add.call_one().get()
    assert [row.messages for row in of(procs).rows] == [7, 8]


def test_meshes_are_those_that_were_not_stopped(spawn_procs: Spawn) -> None:
    one, two = spawn_procs(name="one"), spawn_procs(name="two")
    found = [mesh for mesh in meshes() if mesh.uid in (one.uid, two.uid)]
    assert [mesh.name for mesh in found] == ["one", "two"]
    one.stop().get(timeout=60)
    assert one.uid not in {mesh.uid for mesh in meshes()}
    assert one.uid not in {seen.uid for seen in snapshot()}
    assert two.uid in {seen.uid for seen in snapshot()}


def test_changes_are_told_as_they_happen(spawn_procs: Spawn) -> None:
    told: list[Any] = []
    stopped = threading.Event()

    def listen(change: Any) -> None:
        told.append(change)
        if type(change).__name__ == "MeshStopped":
            stopped.set()

    end = on_change(listen)
    procs = spawn_procs({"gpus": 2}, name="watched")
    procs.initialized.get(timeout=60)
    procs.stop().get(timeout=60)
    assert stopped.wait(60)
    end()
    spawn_procs().initialized.get(timeout=60)
    names = [type(change).__name__ for change in told]
    assert names == ["MeshSpawned", "ProcReady", "ProcReady", "MeshStopped"]
    assert told[0].name == "watched"
    assert {change.rank for change in told[1:3]} == {0, 1}
    assert told[0].uid == told[3].uid == procs.uid


@pytest.mark.usefixtures("four")
def test_without_a_session_there_is_nothing_to_see() -> None:
    """Last in this file: it ends the session of the others."""
    shutdown_context()
    assert snapshot() == []
