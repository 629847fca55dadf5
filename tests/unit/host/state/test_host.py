"""What a host agent decides, step by step: how procs begin, are stopped, and run out of time."""

from __future__ import annotations

import pytest

from monarch._src.failures.report import Death
from monarch._src.host.state.host import FreeMesh, Host, Kill, Send, StartProc
from monarch._src.wire.ids import proc_node
from monarch._src.wire.messages import MeshStopped, ProcEnded, StopProc
from tests.unit.host.state.hosts import (
    CRASH,
    ENDED,
    EXIT,
    READY,
    STARTING,
    STARTUP_S,
    STOPPING,
    ends_told,
    spec,
    states,
    stops_told,
    up,
)

# --- one life, step by step -----------------------------------------------------------------------


def test_a_spawn_starts_every_rank(host: Host) -> None:
    asked = spec(1, 3)
    assert host.spawn_requested(asked, 0.0) == [
        StartProc(proc_node(1, rank), asked, rank) for rank in range(3)
    ]
    assert states(host, 1) == [STARTING] * 3


def test_a_mesh_without_dims_is_one_proc(host: Host) -> None:
    asked = spec(1, 1)
    asked.labels, asked.sizes = [], []
    assert [a.node for a in host.spawn_requested(asked, 0.0) if isinstance(a, StartProc)] == ["1.0"]


def test_meshes_are_told_why_they_end_if_it_is_not_that_their_owner_is_gone(host: Host) -> None:
    up(host, 1, 1)
    (told,) = host.node_lost("client", 1.0, "the session was ended")
    assert told == Send("1.0", StopProc("the session was ended", spec(1, 1).cleanup_s))


def test_a_mesh_that_exists_is_refused(host: Host) -> None:
    up(host, 1, 1)
    with pytest.raises(ValueError, match="mesh 1 exists already"):
        host.spawn_requested(spec(1, 2), 0.0)
    assert states(host, 1) == [READY]


def test_a_proc_is_ready_once_it_says_hello(host: Host) -> None:
    host.spawn_requested(spec(1, 2), 0.0)
    assert host.forked("1.0", 100, 1.0) == []
    assert host.hello("1.0", 2.0) == []
    assert states(host, 1) == [READY, STARTING]
    proc = host.proc("1.0")
    assert proc is not None
    assert (proc.pid, proc.deadline) == (100, None)
    assert proc.story == [(0.0, STARTING), (2.0, READY)]


def test_a_second_hello_changes_nothing(host: Host) -> None:
    up(host, 1, 1)
    host.hello("1.0", 5.0)
    assert host.meshes[1].procs[0].story == [(0.0, STARTING), (0.0, READY)]


def test_the_death_of_a_proc_is_told_to_its_owner_with_its_cause(host: Host) -> None:
    up(host, 1, 2)
    assert host.ended("1.1", CRASH, 5.0) == [
        Send("client", ProcEnded("1.1", 1, 1, 101, False, "proc died", CRASH))
    ]
    assert states(host, 1) == [READY, ENDED]


def test_a_proc_that_dies_before_it_says_hello_has_never_started(host: Host) -> None:
    host.spawn_requested(spec(1, 1), 0.0)
    host.forked("1.0", 100, 0.0)
    (told,) = ends_told(host.ended("1.0", CRASH, 1.0), "client")
    assert (told.kind, told.expected) == ("never started", False)


def test_a_proc_that_cannot_be_made_has_never_started(host: Host) -> None:
    host.spawn_requested(spec(1, 2), 0.0)
    (told,) = ends_told(host.start_failed("1.1", "fork failed: no memory", 2.0), "client")
    assert (told.rank, told.pid, told.kind) == (1, 0, "never started")
    assert told.death == Death(None, None, (), None, 2.0, "fork failed: no memory")
    assert states(host, 1) == [STARTING, ENDED]


def test_an_end_is_told_once(host: Host) -> None:
    up(host, 1, 1)
    assert ends_told(host.ended("1.0", CRASH, 5.0), "client")
    assert host.ended("1.0", CRASH, 6.0) == []
    assert host.start_failed("1.0", "again", 6.0) == []


def test_what_is_said_of_procs_that_nobody_knows_is_ignored(host: Host) -> None:
    up(host, 1, 1)
    for node in ("2.0", "1.1", "1.-1", "client", "agent"):
        assert host.hello(node, 0.0) == []
        assert host.ended(node, CRASH, 0.0) == []
        assert host.start_failed(node, "why", 0.0) == []
        assert host.proc(node) is None


# --- stop -----------------------------------------------------------------------------------------


def test_a_stop_is_answered_when_no_process_is_left(host: Host) -> None:
    up(host, 1, 2)
    assert host.stop_requested(1, "client", "done", 5.0, 10.0) == []
    assert states(host, 1) == [STOPPING] * 2
    assert stops_told(host.ended("1.0", EXIT, 11.0), "client") == []
    actions = host.ended("1.1", EXIT, 12.0)
    assert actions[-2:] == [FreeMesh(1, ("1.0", "1.1")), Send("client", MeshStopped(1))]
    assert host.meshes == {}


def test_the_end_of_a_stopped_proc_was_expected(host: Host) -> None:
    up(host, 1, 1)
    host.stop_requested(1, "client", "done", 5.0, 10.0)
    (told,) = ends_told(host.ended("1.0", EXIT, 11.0), "client")
    assert (told.kind, told.expected) == ("stopped", True)


def test_a_proc_that_died_before_the_stop_had_died(host: Host) -> None:
    up(host, 1, 2)
    host.ended("1.0", CRASH, 5.0)
    host.stop_requested(1, "client", "done", 5.0, 10.0)
    assert states(host, 1) == [ENDED, STOPPING]
    assert host.meshes[1].procs[0].kind == "proc died"


def test_everyone_who_asks_for_a_stop_is_answered(host: Host) -> None:
    up(host, 1, 1)
    host.stop_requested(1, "client", "done", 5.0, 10.0)
    host.stop_requested(1, "other", "done", 5.0, 10.5)
    actions = host.ended("1.0", EXIT, 11.0)
    assert stops_told(actions, "client") == [1]
    assert stops_told(actions, "other") == [1]


def test_a_stop_of_a_mesh_that_is_gone_is_answered_at_once(host: Host) -> None:
    assert host.stop_requested(7, "client", "done", 5.0, 0.0) == [Send("client", MeshStopped(7))]


def test_a_stop_of_a_mesh_all_of_which_has_died_is_answered_at_once(host: Host) -> None:
    up(host, 1, 2)
    host.ended("1.0", CRASH, 1.0)
    host.ended("1.1", CRASH, 1.0)
    assert states(host, 1) == [ENDED, ENDED]
    assert host.stop_requested(1, "client", "done", 5.0, 2.0) == [
        FreeMesh(1, ("1.0", "1.1")), Send("client", MeshStopped(1)),
    ]  # fmt: skip


def test_a_proc_that_does_not_end_in_time_is_killed_and_the_cause_says_so(host: Host) -> None:
    up(host, 1, 1)
    host.stop_requested(1, "client", "done", 5.0, 10.0)
    assert host.next_deadline() == 15.0
    assert host.time_passed(14.9) == []
    assert host.time_passed(15.0) == [Kill("1.0", 100)]
    assert host.next_deadline() is None
    assert host.time_passed(100.0) == [], "one kill is enough"
    (told,) = ends_told(host.ended("1.0", CRASH, 16.0), "client")
    assert told.death.reason == (
        "the host agent killed it: it did not end within the time for clean-up"
    )
    assert told.death.stderr_tail == CRASH.stderr_tail


# --- time -----------------------------------------------------------------------------------------


def test_a_proc_that_never_says_hello_is_killed(host: Host) -> None:
    host.spawn_requested(spec(1, 1), 0.0)
    host.forked("1.0", 100, 1.0)
    assert host.time_passed(STARTUP_S) == [Kill("1.0", 100)]
    (told,) = ends_told(host.ended("1.0", CRASH, 61.0), "client")
    assert told.kind == "never started"
    assert "it did not answer within 60.0 s of being started" in told.death.reason


def test_a_proc_that_is_never_even_made_does_not_keep_anyone_waiting(host: Host) -> None:
    host.spawn_requested(spec(1, 1), 0.0)
    (told,) = ends_told(host.time_passed(STARTUP_S), "client")
    assert told.kind == "never started"
    assert told.death.reason == "it did not answer within 60.0 s of being started"
    assert host.next_deadline() is None


def test_a_proc_that_is_made_after_all_is_killed_at_once(host: Host) -> None:
    host.spawn_requested(spec(1, 1), 0.0)
    host.time_passed(STARTUP_S)
    assert host.forked("1.0", 100, 61.0) == [Kill("1.0", 100)]
    assert host.ended("1.0", CRASH, 62.0) == []
    host.stop_requested(1, "client", "done", 5.0, 63.0)
    assert host.forked("1.0", 100, 64.0) == [Kill("1.0", 100)], "of a mesh that is gone"


def test_a_stop_does_not_wait_for_a_proc_that_is_never_made(host: Host) -> None:
    host.spawn_requested(spec(1, 1), 0.0)
    host.stop_requested(1, "client", "done", 5.0, 1.0)
    assert stops_told(host.time_passed(6.0), "client") == [1]


def test_nothing_is_due_where_all_are_ready(host: Host) -> None:
    up(host, 1, 3)
    assert host.next_deadline() is None
    assert host.time_passed(1e9) == []


def test_the_next_deadline_is_the_earliest(host: Host) -> None:
    host.spawn_requested(spec(1, 1), 3.0)
    host.spawn_requested(spec(2, 1), 1.0)
    assert host.next_deadline() == 1.0 + STARTUP_S


# --- a host that is told to end -------------------------------------------------------------------

TOLD = "its worker was told to end"


def test_no_owner_shortens_the_time_of_procs_on_a_host_that_was_told_to_end(host: Host) -> None:
    up(host, 1, 2)
    assert host.drain(TOLD, 100.0, 1.0) == [
        Send(proc_node(1, rank), StopProc(TOLD, 100.0)) for rank in range(2)
    ]
    host.stop_requested(1, "client", "", 5.0, 2.0)
    assert host.node_lost("client", 3.0) == []
    assert host.time_passed(100.9) == []
    assert host.time_passed(101.0) == [Kill("1.0", 100), Kill("1.1", 101)]


def test_the_end_of_a_proc_there_is_told_as_a_death_with_the_reason(host: Host) -> None:
    up(host, 1, 1)
    host.drain(TOLD, 100.0, 1.0)
    host.told_to_stop("1.0")
    actions = host.ended("1.0", EXIT, 50.0)
    (told,) = ends_told(actions, "client")
    assert (told.expected, told.kind) == (False, "proc died")
    assert told.death is not None
    assert told.death.reason == TOLD
    assert FreeMesh(1, ("1.0",)) in actions


def test_a_mesh_that_was_stopped_before_keeps_its_time(host: Host) -> None:
    up(host, 1, 1)
    host.stop_requested(1, "client", "", 5.0, 0.0)
    assert host.drain(TOLD, 100.0, 1.0) == []
    assert host.time_passed(5.0) == [Kill("1.0", 100)]
