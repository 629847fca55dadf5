"""Meshes of the dashboard, from rows of tables."""

from __future__ import annotations

import json
from typing import Any

from monarch._src.admin.dashboard.state.meshes import meshes_of

MIB = 1 << 20


def proc(rank: int, state: str = "idle", **fields: Any) -> dict[str, Any]:
    row = dict.fromkeys(
        ("actor", "endpoint", "failure", "function", "file", "line", "since_s", "errors"), None
    )
    return {
        **row,
        "session": "s", "host": "node-1", "mesh": "workers", "mesh_id": 0xAB, "rank": rank,
        "point_json": json.dumps({"gpus": rank}), "pid": 100 + rank, "state": state,
        "messages": 3, "rss_bytes": 5 * MIB, "restarts": 0, **fields,
    }  # fmt: skip


def mesh(uid: int = 0xAB, **fields: Any) -> dict[str, Any]:
    shape = json.dumps({"inner": {"labels": ["gpus"], "sizes": [4]}})
    return {"session": "s", "id": uid, "timestamp_us": 1_000_000, "shape_json": shape, **fields}


def actor(rank: int, status: str = "idle", name: str = "trainer") -> dict[str, Any]:
    return {
        "session": "s", "proc_mesh_id": 0xAB, "proc_rank": rank, "name": name, "status": status,
    }  # fmt: skip


def test_ranks_are_in_order_with_what_they_run() -> None:
    procs = [proc(1, "busy", actor="Trainer", endpoint="step", since_s=2.5), proc(0)]
    (found,) = meshes_of({"meshes": [mesh()], "procs": procs}, 4_000_000)
    assert (found.uid, found.name, found.host, found.state) == ("ab", "workers", "node-1", "ready")
    assert (found.sizes, found.age_s) == ({"gpus": 4}, 3.0)
    assert [(one.rank, one.state, one.endpoint) for one in found.rows] == [
        (0, "idle", None),
        (1, "busy", "step"),
    ]
    assert (found.rows[1].since_s, found.rows[1].rss_mib) == (2.5, 5.0)


def test_the_client_is_no_mesh() -> None:
    assert meshes_of({"procs": [proc(0, mesh="client")]}, 0) == []


def test_a_mesh_of_which_only_ranks_are_known_has_the_sizes_that_hold_them() -> None:
    (found,) = meshes_of({"procs": [proc(0), proc(5)]}, 9_000_000)
    assert (found.sizes, found.age_s) == ({"gpus": 6}, 0.0)


def test_meshes_are_in_the_order_of_their_spawns() -> None:
    procs = [proc(0), proc(0, mesh_id=0xCD, mesh="later")]
    rows = {"meshes": [mesh(0xCD, timestamp_us=2_000_000), mesh()], "procs": procs}
    assert [one.name for one in meshes_of(rows, 3_000_000)] == ["workers", "later"]


def test_a_mesh_is_as_well_as_its_worst_rank() -> None:
    def state(*states: str) -> str:
        (found,) = meshes_of({"procs": [proc(n, one) for n, one in enumerate(states)]}, 0)
        return found.state

    assert state("idle", "failed", "starting") == "failed"
    assert state("idle", "starting") == "starting"
    assert state("stopped", "stopped") == "stopped"
    assert state("stopped", "idle") == "ready"


def test_ranks_on_several_hosts_are_counted() -> None:
    (found,) = meshes_of({"procs": [proc(0), proc(1, host="node-2")]}, 0)
    assert found.host == "2 hosts"


def test_a_failed_actor_of_a_living_rank_has_a_line() -> None:
    actors = [actor(0), actor(1, "failed"), actor(2, "failed"), actor(3, "failed")]
    actors.append(actor(0, "stopped", "old"))
    procs = [proc(0), proc(1), proc(2), proc(3, "failed")]
    (found,) = meshes_of({"procs": procs, "actors": actors}, 0)
    assert found.actors == ["trainer"]
    assert found.failed == ["trainer has failed at gpus=1 and 1 more"]


def test_a_paused_rank_has_its_line() -> None:
    procs = [proc(0, "paused", function="Trainer.step", file="train.py", line=41)]
    (found,) = meshes_of({"procs": procs}, 0)
    assert found.rows[0].where == "Trainer.step (train.py:41)"
