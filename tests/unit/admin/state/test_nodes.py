from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.admin.state.nodes import Cluster, HostSource, Missing, build, printable, tree_text

SOURCE = HostSource("abc", "/run/monarch-abc")
HOST = {"session": "abc", "host": "here", "agent_pid": 5, "cores": 2}


def proc(rank: int, state: str = "idle", **more: Any) -> dict[str, Any]:
    return {
        "session": "abc", "host": "here", "mesh_id": 0x1F, "mesh": "workers", "rank": rank,
        "point_json": f'{{"gpus":{rank}}}', "pid": 100 + rank, "state": state, "since_s": 1.0,
        "actor": None, "endpoint": None, "messages": 0, "errors": 0, "busy_s": 0.0,
        "rss_bytes": None, "restarts": 0, "failure": None, **more,
    }  # fmt: skip


def actor(
    rank: int, status: str = "idle", mesh: str = "workers", uid: int = 0x1F
) -> dict[str, Any]:
    return {
        "session": "abc", "proc_mesh_id": uid, "proc_mesh": mesh, "proc_rank": rank,
        "mesh_id": 0x2A, "rank": rank, "name": "trainer", "class": "train.Trainer", "pid": 1,
        "status": status, "running": None, "queued": 0, "full_name": "x",
    }  # fmt: skip


def cluster(**tables: list[dict[str, Any]]) -> Cluster:
    found = build(1, 10, [SOURCE], {"hosts": [HOST], **tables})
    found.validate()
    return found


def test_nodes_name_their_parents_and_children() -> None:
    found = cluster(procs=[proc(0), proc(1)], actors=[actor(0), actor(1)])
    assert found.nodes["root"].children == ["host:abc"]
    assert found.nodes["host:abc"].children == ["proc:abc:1f:0", "proc:abc:1f:1"]
    assert found.nodes["proc:abc:1f:1"].children == ["actor:abc:1f:1:2a"]
    assert found.nodes["actor:abc:1f:1:2a"].parent == "proc:abc:1f:1"


def test_failures_are_counted_on_the_way_up() -> None:
    found = cluster(
        procs=[proc(0), proc(1, "failed", failure="killed by SIGKILL")], actors=[actor(0, "failed")]
    )
    root, host = found.nodes["root"], found.nodes["host:abc"]
    assert root.failure == "1 failed proc"
    assert host.failure == "1 failed proc"
    assert found.nodes["proc:abc:1f:0"].failure == "1 failed actor"
    assert found.nodes["proc:abc:1f:1"].failure == "killed by SIGKILL"


def test_a_process_that_only_has_actors_is_the_client() -> None:
    found = cluster(actors=[actor(0, mesh="client", uid=7)])
    properties = found.nodes["proc:abc:7:0"].properties.Proc
    assert properties is not None
    assert properties.is_client


def test_a_host_that_does_not_answer_is_an_error_with_the_reason() -> None:
    missing = [Missing("hosts", "session abc", "its host agent does not answer")]
    found = build(1, 10, [SOURCE], {}, missing)
    found.validate()
    error = found.nodes["host:abc"].properties.Error
    assert error is not None
    assert (error.code, error.message) == ("gateway_timeout", "its host agent does not answer")
    assert "missing: hosts: session abc" in tree_text(found)


def test_the_tree_has_a_line_for_each_node() -> None:
    text = tree_text(cluster(procs=[proc(0), proc(1)], actors=[actor(1)]))
    assert text.splitlines()[1:] == [
        "└── host here (session abc), 2 procs",
        "    ├── workers[gpus=0] pid 100 idle",
        "    └── workers[gpus=1] pid 101 idle",
        "        └── trainer (train.Trainer) idle",
    ]


def test_the_lines_of_the_root_and_of_hosts_count_what_has_failed() -> None:
    dead = proc(1, "failed", failure="killed by SIGKILL")
    lines = tree_text(cluster(procs=[proc(0), dead], actors=[actor(0, "failed")])).splitlines()
    assert lines[0] == "1 host, 2 procs, 1 actor; 1 failed proc"
    assert lines[1] == "└── host here (session abc), 2 procs; 1 failed proc"
    many = cluster(procs=[proc(rank, "failed") for rank in range(1024)])
    assert tree_text(many).startswith("1 host, 1,024 procs; 1,024 failed procs\n")


def test_names_cannot_move_the_cursor_of_a_terminal() -> None:
    text = tree_text(cluster(procs=[proc(0, "failed", failure="\x1b[2J\nroot\r\u202e")]))
    assert all(line.isprintable() for line in text.splitlines())
    assert r"\x1b[2J\nroot\r\u202e" in text


@given(st.text())
def test_whatever_is_printable_stays_as_it_is(text: str) -> None:
    found = printable(text)
    assert found.isprintable()
    assert found == text or not text.isprintable()
