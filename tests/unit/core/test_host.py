"""What a host agent decides: every transition, and every order in which things can happen."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from monarch._src.core.host import (
    TRANSITIONS,
    Action,
    FreeMesh,
    Host,
    Kill,
    Proc,
    ProcState,
    Send,
    StartProc,
)
from monarch._src.core.ids import proc_node
from monarch._src.errors import Death
from monarch._src.wire.messages import MeshStopped, ProcEnded, SpawnProcs, StopProc

STARTING, READY, STOPPING, ENDED = ProcState
STARTUP_S, CLEANUP_S = 60.0, 10.0
CRASH = Death(None, "SIGSEGV", ("last words",), "Actor.work", 3.0, "killed by SIGSEGV")
EXIT = Death(0, None, (), None, 3.0, "exited with status 0")


def spec(mesh: int, ranks: int, owner: str = "client") -> SpawnProcs:
    return SpawnProcs(
        mesh=mesh, name=f"mesh{mesh}", labels=["gpus"], sizes=[ranks], owner=owner,
        owner_address="ipc:///owner", env=[], cwd="/", path=[], preload=[],
        startup_s=STARTUP_S, cleanup_s=CLEANUP_S,
    )  # fmt: skip


def states(host: Host, mesh: int) -> list[ProcState]:
    return [proc.state for proc in host.meshes[mesh].procs]


def ends_told(actions: list[Action], to: str) -> list[ProcEnded]:
    return [
        a.message
        for a in actions
        if isinstance(a, Send) and a.to == to and isinstance(a.message, ProcEnded)
    ]


def stops_told(actions: list[Action], to: str) -> list[int]:
    return [
        a.message.mesh
        for a in actions
        if isinstance(a, Send) and a.to == to and isinstance(a.message, MeshStopped)
    ]


@pytest.fixture
def host() -> Iterator[Host]:
    """A host whose invariants are looked at when the test has ended."""
    made = Host()
    yield made
    made.validate()


def up(host: Host, mesh: int, ranks: int, owner: str = "client", now: float = 0.0) -> None:
    """A mesh all of whose procs are ready; the pid of a rank is 100 * mesh + rank."""
    host.spawn_requested(spec(mesh, ranks, owner), now)
    for rank in range(ranks):
        host.forked(proc_node(mesh, rank), 100 * mesh + rank, now)
        host.hello(proc_node(mesh, rank), now)


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
    assert actions[-2:] == [FreeMesh(1), Send("client", MeshStopped(1))]
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
        FreeMesh(1), Send("client", MeshStopped(1)),
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


# --- owners and watchers --------------------------------------------------------------------------


def test_a_mesh_whose_owner_is_gone_is_stopped_with_clean_up(host: Host) -> None:
    up(host, 1, 2)
    reason = "its owner client is gone"
    assert host.node_lost("client", 20.0) == [
        Send("1.0", StopProc(reason, CLEANUP_S)), Send("1.1", StopProc(reason, CLEANUP_S)),
    ]  # fmt: skip
    assert host.next_deadline() == 20.0 + CLEANUP_S


def test_a_proc_that_has_not_said_hello_is_killed_when_its_owner_is_gone(host: Host) -> None:
    host.spawn_requested(spec(1, 3), 0.0)
    host.forked("1.0", 100, 0.0)
    host.forked("1.1", 101, 0.0)
    host.hello("1.1", 0.0)
    actions = host.node_lost("client", 1.0)
    assert [a for a in actions if isinstance(a, Kill)] == [Kill("1.0", 100)]
    assert [a.to for a in actions if isinstance(a, Send)] == ["1.1"]
    assert host.forked("1.2", 102, 2.0) == [Kill("1.2", 102)]


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
    assert host.ended("2.0", CRASH, 4.0) == [FreeMesh(2)]


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


# --- every order ----------------------------------------------------------------------------------


@dataclass
class World:
    """A host, and what a driver and the processes around it would do next.

    Two meshes: 1, of one or two procs, is the client's; 2, of one proc, is that of proc 1.0.
    """

    host: Host = field(default_factory=Host)
    now: float = 0.0
    ranks: int = 1
    to_fork: set[str] = field(default_factory=set[str])
    alive: dict[str, int] = field(default_factory=dict[str, int])
    greeted: set[str] = field(default_factory=set[str])
    killed: set[str] = field(default_factory=set[str])
    asked: frozenset[str] = frozenset()  # what can be asked once and was
    stops_asked: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    stops_told: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    watches: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    ends_told: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    freed: Counter[int] = field(default_factory=Counter[int])
    lost: set[str] = field(default_factory=set[str])
    story: list[str] = field(default_factory=list[str])

    def carry_out(self, actions: list[Action]) -> None:
        """Do what the driver would, and note who was told what."""
        self.host.validate()
        for action in actions:
            match action:
                case StartProc(node=node):
                    self.to_fork.add(node)
                case Kill(node=node, pid=pid):
                    assert self.alive.get(node) == pid, "a process is killed by its own pid"
                    assert node not in self.killed, "and once"
                    self.killed.add(node)
                case FreeMesh(mesh=mesh):
                    self.freed[mesh] += 1
                case Send(to=to, message=message):
                    if to in self.lost:
                        continue
                    if isinstance(message, ProcEnded):
                        self.ends_told[to, message.node] += 1
                    elif isinstance(message, MeshStopped):
                        self.stops_told[to, message.mesh] += 1
                    else:
                        assert to in self.alive

    def possible(self) -> list[str]:
        """Everything that can happen next, by name."""
        found = [f"fork {n}" for n in self.to_fork]
        if self.ranks == 1:  # with two, it would only be more of the same
            found += [f"fail {n}" for n in self.to_fork] + ["ask watch 2.0 by client"]
        found += [f"end {n}" for n in self.alive]
        found += [f"hello {n}" for n in self.alive if n not in self.greeted]
        if "1.0" in self.greeted:  # it may have asked before it ended
            found.append("ask spawn 2")
        if "client" not in self.lost:
            found += ["ask stop 1 by client", "ask lose client"]
        else:
            found = [what for what in found if "by client" not in what]
        if self.host.next_deadline() is not None:
            found.append("wait")
        return [what for what in found if what not in self.asked]

    def happen(self, what: str) -> None:
        """One event, and what follows from it."""
        self.story.append(what)
        host = self.host
        if what.startswith("ask"):
            self.asked |= {what}
        match what.split():
            case ["fork", node]:
                self.to_fork.discard(node)
                self.alive[node] = 100 + len(self.freed)
                self.carry_out(host.forked(node, self.alive[node], self.now))
            case ["fail", node]:
                self.to_fork.discard(node)
                self.carry_out(host.start_failed(node, "no memory", self.now))
            case ["hello", node]:
                self.greeted.add(node)
                self.carry_out(host.hello(node, self.now))
            case ["end", node]:
                del self.alive[node]
                self.killed.discard(node)
                self.lost.add(node)
                self.carry_out(host.ended(node, CRASH, self.now))
            case ["wait"]:
                self.now = host.next_deadline() or self.now
                before = host.next_deadline()
                self.carry_out(host.time_passed(self.now))
                after = host.next_deadline()
                assert after is None or before is None or after > before, "time is used up"
            case ["ask", "spawn", mesh]:
                asked = spec(int(mesh), 1, "1.0")
                self.watches["1.0", "2.0"] += 1
                self.carry_out(host.spawn_requested(asked, self.now))
            case ["ask", "stop", mesh, "by", asker]:
                self.stops_asked[asker, int(mesh)] += 1
                self.carry_out(host.stop_requested(int(mesh), asker, "done", 5.0, self.now))
            case ["ask", "watch", node, "by", watcher]:
                self.watches[watcher, node] += 1
                self.carry_out(host.watch_requested(node, watcher, "1.0"))
            case ["ask", "lose", node]:
                self.lost.add(node)
                self.carry_out(host.node_lost(node, self.now))
            case _:
                raise AssertionError(what)

    def check_who_was_told(self) -> None:
        """Each who asked and is there to hear: once, and not before it has happened."""
        for (watcher, node), times in self.watches.items():
            if self.host._is_gone(watcher):
                continue
            proc, told = self.host.proc(node), self.ends_told[watcher, node]
            never_made = node == "2.0" and self.host._is_gone("1.0")
            if node == "2.0" and "ask spawn 2" not in self.asked:
                assert told == times * never_made, self.story
            elif proc is None or proc.state is ENDED:
                assert told == times, self.story
            else:  # or its owner's end was noticed before that it had asked for it
                assert told == 0 or never_made, self.story
        for (asker, mesh), times in self.stops_asked.items():
            if not self.host._is_gone(asker):
                assert self.stops_told[asker, mesh] == times * (mesh not in self.host.meshes)
        assert set(self.ends_told) <= set(self.watches), "nobody is told who did not ask"
        assert set(self.stops_told) <= set(self.stops_asked)

    def key(self) -> object:
        """Equal for worlds in which the same can follow."""
        return (
            tuple(
                (
                    uid, mesh.stopping, tuple(mesh.stop_askers),
                    tuple(
                        (p.state, p.pid is None, p.said_hello, p.expected, p.killed_for is None,
                         p.deadline is None, p.kind)
                        for p in mesh.procs
                    ),
                )
                for uid, mesh in sorted(self.host.meshes.items())
            ),
            frozenset(self.to_fork), frozenset(self.alive), frozenset(self.greeted),
            frozenset(self.killed), self.asked, frozenset(self.lost),
            frozenset(self.stops_told.items()), frozenset(self.ends_told.items()),
        )  # fmt: skip


def begun(ranks: int) -> World:
    world = World(ranks=ranks)
    for rank in range(ranks):
        world.watches["client", proc_node(1, rank)] += 1
    world.carry_out(world.host.spawn_requested(spec(1, ranks), 0.0))
    return world


def let_end(world: World) -> None:
    """The client goes away; killed processes end, starts are refused, deadlines pass."""
    if "client" not in world.lost:
        world.happen("ask lose client")
    for _ in range(50):
        if not world.host.meshes:
            break
        if world.killed:
            world.happen(f"end {min(world.killed)}")
        else:
            world.happen("wait")
    for node in [*world.to_fork]:
        world.happen(f"fork {node}")
        assert node in world.killed, "a process that comes when nobody wants it is killed"


@pytest.mark.parametrize("ranks", [1, 2])
def test_in_every_order_everyone_is_told_once_and_nothing_is_left(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: set[tuple[ProcState, ProcState]] = set()
    move = Host._move

    def noted_move(self: Host, proc: Proc, state: ProcState, now: float) -> None:
        moves.add((proc.state, state))
        move(self, proc, state, now)

    monkeypatch.setattr(Host, "_move", noted_move)
    seen: set[object] = set()
    waiting = deque([begun(ranks)])
    while waiting:
        world = waiting.popleft()
        if world.key() in seen:
            continue
        seen.add(world.key())
        copies = pickle.dumps(world)
        for what in world.possible():
            following = pickle.loads(copies)
            following.happen(what)
            waiting.append(following)
        world.check_who_was_told()
        let_end(world)
        assert world.host.meshes == {}, world.story
        assert world.host.next_deadline() is None
        fresh = Host()
        fresh.node_lost("client", 0.0)
        assert vars(world.host) == vars(fresh), "a host that has ended all remembers nothing"
        assert world.freed == {m: 1 for m in (1, 2) if m == 1 or "ask spawn 2" in world.asked}
    assert len(seen) > 300
    assert moves == {(a, b) for a in ProcState for b in TRANSITIONS[a]}
