from __future__ import annotations

from typing import Any

from monarch._src.admin.state.nodes import Cluster, HostSource, build
from monarch._src.admin.state.outline import Outline
from tests.unit.admin.state.test_nodes import HOST, actor, proc

SOURCE = HostSource("abc", "/run/monarch-abc")


def cluster(*procs: dict[str, Any], actors: tuple[dict[str, Any], ...] = ()) -> Cluster:
    return build(1, 10, [SOURCE], {"hosts": [HOST], "procs": list(procs), "actors": list(actors)})


def shown(outline: Outline, found: Cluster) -> list[str]:
    return [row.identity for row in outline.rows(found)]


def test_hosts_are_expanded_and_procs_are_not() -> None:
    found = cluster(proc(0), proc(1), actors=(actor(0),))
    rows = Outline().rows(found)
    assert [(row.identity, row.depth, row.marker) for row in rows] == [
        ("root", 0, "▾"), ("host:abc", 1, "▾"),
        ("proc:abc:1f:0", 2, "▸"), ("proc:abc:1f:1", 2, " "),
    ]  # fmt: skip


def test_the_failed_come_first_and_the_rest_keep_their_order() -> None:
    found = cluster(proc(0), proc(1), proc(2, "failed"), proc(3))
    assert shown(Outline(), found)[2:] == [f"proc:abc:1f:{rank}" for rank in (2, 0, 1, 3)]
    assert [row.is_failed for row in Outline().rows(found)] == [True, True, True, *[False] * 3]


def test_a_node_is_expanded_and_collapsed_again() -> None:
    found, outline = cluster(proc(0), actors=(actor(0),)), Outline()
    outline.toggle("proc:abc:1f:0")
    assert shown(outline, found)[-1] == "actor:abc:1f:0:2a"
    outline.toggle("proc:abc:1f:0")
    assert shown(outline, found)[-1] == "proc:abc:1f:0"
    outline.collapse_all()
    assert shown(outline, found) == ["root", "host:abc"]


def test_a_host_that_was_collapsed_stays_so() -> None:
    found, outline = cluster(proc(0)), Outline()
    outline.rows(found)
    outline.toggle("host:abc")
    assert shown(outline, found) == ["root", "host:abc"]


def test_stopped_and_system_actors_are_shown_when_asked_for() -> None:
    system = {**actor(0), "mesh_id": 0x2B, "class": "monarch._src.mesh.controllers.X"}
    stopped = {**actor(0, "stopped"), "mesh_id": 0x2C}
    found, outline = cluster(proc(0), actors=(actor(0), system, stopped)), Outline()
    outline.toggle("proc:abc:1f:0")
    assert shown(outline, found)[3:] == ["actor:abc:1f:0:2a"]
    outline.shows_system = outline.shows_stopped = True
    assert len(shown(outline, found)[3:]) == 3


def test_a_search_shows_what_it_finds_with_the_nodes_above() -> None:
    found = cluster(proc(0), proc(1), actors=(actor(1),))
    outline = Outline(search="TRAINER")
    assert shown(outline, found) == ["root", "host:abc", "proc:abc:1f:1", "actor:abc:1f:1:2a"]
    outline.search = "nothing has this"
    assert shown(outline, found) == ["root"]
