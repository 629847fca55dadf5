"""What a host agent decides of meshes whose owner is gone, and whom it tells of an end."""

from __future__ import annotations

import pytest

from monarch._src.host.state.host import UNMET_S, FreeMesh, Host, Kill, Send, StartProc
from monarch._src.wire.ids import proc_node
from monarch._src.wire.messages import StopProc
from tests.unit.host.state.hosts import (
    CLEANUP_S,
    CRASH,
    ENDED,
    EXIT,
    READY,
    STOPPING,
    ends_told,
    spec,
    states,
    up,
)

# --- owners and watchers --------------------------------------------------------------------------


def test_a_mesh_whose_owner_is_gone_is_stopped_with_clean_up(host: Host) -> None:
    up(host, 1, 2)
    reason = "its owner client is gone"
    assert host.node_lost("client", 20.0) == [
        Send("1.0", StopProc(reason, CLEANUP_S)), Send("1.1", StopProc(reason, CLEANUP_S)),
    ]  # fmt: skip
    assert host.next_deadline() == 20.0 + CLEANUP_S


def test_a_proc_that_has_met_its_owner_and_not_yet_the_agent_cleans_up_too(host: Host) -> None:
    host.spawn_requested(spec(1, 1), 0.0)
    host.forked("1.0", 100, 0.0)
    assert [a for a in host.node_lost("client", 1.0) if isinstance(a, (Kill, Send))] == []
    assert host.time_passed(1.0 + UNMET_S - 0.1) == []
    assert host.hello("1.0", 2.0) == [Send("1.0", StopProc("its owner client is gone", CLEANUP_S))]
    assert host.hello("1.0", 2.0) == []
    assert host.time_passed(2.0 + CLEANUP_S - 0.1) == []
    assert host.time_passed(2.0 + CLEANUP_S) == [Kill("1.0", 100)]


def test_a_proc_that_does_not_say_hello_is_killed_when_its_owner_is_gone(host: Host) -> None:
    host.spawn_requested(spec(1, 3), 0.0)
    host.forked("1.0", 100, 0.0)
    host.forked("1.1", 101, 0.0)
    host.hello("1.1", 0.0)
    actions = host.node_lost("client", 1.0)
    assert [a.to for a in actions if isinstance(a, Send)] == ["1.1"]
    assert [a for a in actions if isinstance(a, Kill)] == []
    assert host.forked("1.2", 102, 2.0) == [Kill("1.2", 102)]
    assert host.time_passed(1.0 + UNMET_S) == [Kill("1.0", 100)]


def test_meshes_of_a_proc_that_dies_are_stopped_and_so_down_the_tree(host: Host) -> None:
    up(host, 1, 1)
    up(host, 2, 1, owner="1.0")
    up(host, 3, 1, owner="2.0")
    assert [a.to for a in host.ended("1.0", CRASH, 1.0) if isinstance(a, Send)] == ["client", "2.0"]
    assert states(host, 3) == [READY]
    assert [a.to for a in host.ended("2.0", EXIT, 2.0) if isinstance(a, Send)] == ["3.0"]
    assert 2 not in host.meshes
    host.ended("3.0", EXIT, 3.0)
    assert list(host.meshes) == [1], "a mesh stays known until its owner stops it"


@pytest.mark.parametrize("owner", ["client", "1.0", "7.0"])
def test_what_an_owner_asked_for_before_it_was_gone_ends_at_once(host: Host, owner: str) -> None:
    up(host, 1, 1)
    host.ended("1.0", CRASH, 1.0)
    host.node_lost("client", 1.0)
    actions = host.spawn_requested(spec(2, 2, owner), 2.0)
    assert [a.node for a in actions if isinstance(a, StartProc)] == ["2.0", "2.1"]
    assert states(host, 2) == [STOPPING] * 2
    assert host.forked("2.0", 200, 3.0) == [Kill("2.0", 200)]
    host.start_failed("2.1", "its mesh was stopped before it began", 3.0)
    assert host.ended("2.0", CRASH, 4.0) == [FreeMesh(2, ("2.0", "2.1"))]


def test_nobody_is_told_who_is_gone(host: Host) -> None:
    up(host, 1, 1)
    host.watch_requested("1.0", "watcher")
    host.node_lost("watcher", 1.0)
    assert [a.to for a in host.ended("1.0", CRASH, 2.0) if isinstance(a, Send)] == ["client"]


def test_whoever_watches_a_proc_is_told_of_its_end(host: Host) -> None:
    up(host, 1, 1)
    assert host.watch_requested("1.0", "watcher") == []
    actions = host.ended("1.0", CRASH, 1.0)
    assert ends_told(actions, "watcher") == ends_told(actions, "client")


def test_whoever_watches_a_proc_that_has_ended_is_told_at_once(host: Host) -> None:
    up(host, 1, 1)
    (told,) = ends_told(host.ended("1.0", CRASH, 1.0), "client")
    assert host.watch_requested("1.0", "watcher") == [Send("watcher", told)]


def test_whoever_watches_a_proc_of_a_mesh_that_is_gone_is_told_so(host: Host) -> None:
    (told,) = ends_told(host.watch_requested("7.3", "watcher"), "watcher")
    assert (told.node, told.mesh, told.rank, told.kind) == ("7.3", 7, 3, "stopped")
    assert told.expected


def test_a_watch_that_overtakes_the_spawn_it_is_about_waits_for_it(host: Host) -> None:
    up(host, 1, 1)
    assert host.watch_requested("2.0", "1.0", "client") == []
    assert host.watch_requested("3.0", "1.0", "client") == []
    up(host, 2, 1)
    assert len(ends_told(host.ended("2.0", CRASH, 1.0), "1.0")) == 1
    assert [m.node for m in ends_told(host.node_lost("client", 2.0), "1.0")] == ["3.0"]


def test_a_watch_of_a_mesh_that_was_stopped_is_answered_at_once(host: Host) -> None:
    up(host, 1, 1)
    host.stop_requested(1, "client", "done", 5.0, 1.0)
    host.ended("1.0", EXIT, 2.0)
    (told,) = ends_told(host.watch_requested("1.0", "watcher", "client"), "watcher")
    assert told.kind == "stopped"


def test_a_watch_of_a_mesh_whose_owner_is_gone_is_answered_at_once(host: Host) -> None:
    host.node_lost("client", 1.0)
    for owner in ("client", "9.0"):
        (told,) = ends_told(host.watch_requested("2.0", "watcher", owner), "watcher")
        assert told.kind == "stopped"


def test_an_early_watch_by_one_who_is_gone_is_forgotten(host: Host) -> None:
    host.watch_requested("2.0", "watcher", "client")
    host.node_lost("watcher", 1.0)
    up(host, 2, 1)
    assert ends_told(host.ended("2.0", CRASH, 1.0), "watcher") == []


def test_a_node_that_is_no_proc_cannot_be_watched(host: Host) -> None:
    assert host.watch_requested("client", "watcher") == []


# --- a client that lets go, and the next one ------------------------------------------------------


def test_what_a_lost_owner_was_to_spare_lives_on_and_the_rest_ends(host: Host) -> None:
    up(host, 1, 1)
    up(host, 2, 1)
    actions = host.node_lost("client", 1.0, "it let go", spare={1})
    assert Send(proc_node(2, 0), StopProc("it let go", CLEANUP_S)) in actions
    assert states(host, 1) == [READY]
    assert states(host, 2) == [STOPPING]
    # Nobody is told of what happens to it meanwhile.
    assert host.ended(proc_node(1, 0), CRASH, 2.0) == []


def test_who_inherits_a_mesh_hears_of_the_ends_there_were_and_of_those_to_come(host: Host) -> None:
    up(host, 1, 3)
    host.node_lost("client", 1.0, spare={1})
    host.ended(proc_node(1, 2), CRASH, 2.0)
    (ended,) = host.inherited(1, "client-2", "ipc:///client-2")
    assert (ended.node, ended.death, ended.expected) == (proc_node(1, 2), CRASH, False)
    (told,) = ends_told(host.ended(proc_node(1, 0), CRASH, 3.0), "client-2")
    assert told.node == proc_node(1, 0)
    spec = host.meshes[1].spec
    assert (spec.owner, spec.owner_address) == ("client-2", "ipc:///client-2")
    # And it ends with the new owner.
    host.node_lost("client-2", 4.0)
    assert states(host, 1) == [ENDED, STOPPING, ENDED]


def test_a_mesh_is_inherited_from_an_owner_that_lives(host: Host) -> None:
    up(host, 1, 1)
    host.inherited(1, "client-2", "ipc:///client-2")
    actions = host.ended(proc_node(1, 0), CRASH, 3.0)
    assert len(ends_told(actions, "client-2")) == 1
    assert ends_told(actions, "client") == []
