"""Procs that are started again: how often, when, and in every order in which things can happen."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from monarch._src.failures.report import Death, RankFailure
from monarch._src.host.state.host import (
    AGAIN,
    Action,
    FreeMesh,
    Host,
    Kill,
    RenewProc,
    Send,
    StartProc,
)
from monarch._src.host.state.procs import TRANSITIONS, Proc, ProcState
from monarch._src.host.state.restarts import Again, Final, Restarts, delay
from monarch._src.wire.ids import life_of, parse_proc_node, proc_node
from monarch._src.wire.messages import (
    MeshStopped,
    ProcEnded,
    ProcLife,
    RestartRule,
    SpawnProcs,
    StopProc,
)

CRASH = Death(None, "SIGSEGV", ("last words",), "Actor.work", 3.0, "killed by SIGSEGV")
EXIT = Death(0, None, (), None, 3.0, "exited with status 0")
BOOM = RankFailure(
    "mesh", 0, {"gpus": 0}, "Actor", "work", "host", 7, "actor died", "ValueError", "boom"
)
STARTUP_S, CLEANUP_S = 60.0, 10.0
RULE = RestartRule(2, 60.0, 1.0, 2.0, 30.0, 0.0, 0)
EVER = RestartRule(2, 1e9, 1.0, 2.0, 30.0, 0.0, 0)

rules = st.builds(
    RestartRule,
    most=st.integers(1, 6),
    within_s=st.floats(0.1, 100),
    first_s=st.floats(0, 10),
    factor=st.floats(1, 4),
    longest_s=st.floats(0, 30),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 3),
)


# --- how often, and when --------------------------------------------------------------------------


@given(rules, st.lists(st.floats(0, 20), max_size=40))
def test_in_no_window_is_a_rank_started_again_more_often_than_its_rule_allows(
    rule: RestartRule, pauses: list[float]
) -> None:
    restarts, now, times = Restarts(rule, 0), 0.0, list[float]()
    for pause in pauses:
        now += pause
        inside = [at for at in times if now - at < rule.within_s]
        verdict = restarts.died(CRASH, now)
        restarts.validate()
        assert isinstance(verdict, Final) == (len(inside) >= rule.most)
        if isinstance(verdict, Final):
            assert len(verdict.earlier) == rule.most
        else:
            times.append(now)
            assert verdict.number == len(times)
            assert now <= verdict.at <= now + rule.longest_s


@given(rules, st.integers(0, 7), st.integers(0, 3000))
def test_waits_grow_by_the_factor_up_to_the_longest_and_chance_only_shortens_them(
    rule: RestartRule, rank: int, recent: int
) -> None:
    full = replace(rule, jitter=0.0)
    wait, whole = delay(rule, rank, 3, recent), delay(full, rank, 3, recent)
    assert whole * (1 - rule.jitter) - 1e-9 <= wait <= whole <= rule.longest_s
    longer = delay(full, rank, 3, recent + 1)
    assert whole <= longer
    if recent > 0 and longer < rule.longest_s:
        assert longer == pytest.approx(whole * rule.factor)


def test_the_first_restart_comes_at_once() -> None:
    assert Restarts(RULE, 0).died(CRASH, 5.0) == Again(5.0, 1)


def test_the_same_seed_gives_the_same_waits_and_ranks_wait_differently() -> None:
    rule = RestartRule(9, 60.0, 1.0, 2.0, 30.0, 1.0, 11)
    waits = [[delay(rule, rank, n, n) for n in range(1, 6)] for rank in range(4)]
    assert waits == [[delay(rule, rank, n, n) for n in range(1, 6)] for rank in range(4)]
    assert len({tuple(of_rank) for of_rank in waits}) == 4
    other = RestartRule(9, 60.0, 1.0, 2.0, 30.0, 1.0, 12)
    assert delay(other, 0, 1, 1) != waits[0][0]


def test_deaths_outside_the_window_are_forgotten_and_the_count_is_not() -> None:
    restarts = Restarts(RULE, 0)
    restarts.died(CRASH, 0.0)
    restarts.died(CRASH, 1.0)
    assert restarts.died(CRASH, 61.0) == Again(61.0, 3)


# --- one rank, step by step -----------------------------------------------------------------------


def spec(owner: str = "client", rule: RestartRule | None = RULE, ranks: int = 1) -> SpawnProcs:
    return SpawnProcs(
        mesh=1, name="mesh", labels=["gpus"], sizes=[ranks], owner=owner, owner_address="",
        env=[], cwd="/", path=[], preload=[], startup_s=STARTUP_S, cleanup_s=CLEANUP_S,
        restart=rule, while_restarting="wait",
    )  # fmt: skip


def up(host: Host, node: str = "1.0", pid: int = 100, now: float = 0.0) -> list[Action]:
    host.forked(node, pid, now)
    return host.hello(node, now)


@pytest.fixture
def host() -> Host:
    made = Host()
    made.spawn_requested(spec(), 0.0)
    up(made)
    return made


def the(host: Host) -> Proc:
    host.validate()
    return host.meshes[1].procs[0]


def test_a_rank_that_dies_is_started_again_under_another_name_and_whoever_watches_is_told(
    host: Host,
) -> None:
    host.watch_requested("1.0", "watcher")
    actions = host.ended("1.0", CRASH, 5.0)
    told = ProcEnded("1.0", 1, 0, 100, False, "proc died", CRASH, 1)
    assert actions == [
        RenewProc(1, 0, "1.0", "1.0.1"), Send("client", told), Send("watcher", told),
        StartProc("1.0.1", host.meshes[1].spec, 0),
    ]  # fmt: skip
    assert (the(host).state, the(host).life) == (ProcState.STARTING, 1)
    back = ProcLife(1, 0, 1, True)
    assert up(host, "1.0.1", 101, 6.0) == [Send("client", back), Send("watcher", back)]


def test_the_second_restart_within_the_window_waits_and_the_third_death_is_final(
    host: Host,
) -> None:
    host.ended("1.0", CRASH, 5.0)
    up(host, "1.0.1", 101, 5.0)
    assert not any(isinstance(a, StartProc) for a in host.ended("1.0.1", CRASH, 6.0))
    assert (the(host).state, host.next_deadline()) == (ProcState.RESTARTING, 7.0)
    assert host.time_passed(6.9) == []
    (start,) = host.time_passed(7.0)
    assert start == StartProc("1.0.2", host.meshes[1].spec, 0)
    up(host, "1.0.2", 102, 7.0)
    (final,) = host.ended("1.0.2", EXIT, 8.0)
    assert isinstance(final, Send)
    assert isinstance(final.message, ProcEnded)
    assert (final.message.next_life, final.message.earlier) == (0, [CRASH, CRASH])
    assert the(host).state is ProcState.ENDED


def test_no_rank_is_started_again_before_a_rule_allows_it_or_after_another_forbids_it() -> None:
    host, never = Host(), replace(RULE, most=0)
    host.spawn_requested(spec(rule=never), 0.0)
    mesh = host.meshes[1]
    host.forked("1.0", 100, 0.0)
    up(host, "1.0", 100, 0.0)
    assert mesh.set_restart_rule(RULE)
    host.ended("1.0", CRASH, 1.0)
    up(host, "1.0.1", 101, 1.0)
    mesh.set_restart_rule(never)
    (final,) = host.ended("1.0.1", CRASH, 2.0)
    assert isinstance(final, Send)
    assert isinstance(final.message, ProcEnded)
    assert (final.message.next_life, final.message.earlier) == (0, [])


def test_a_mesh_that_was_spawned_without_restarts_takes_no_rule() -> None:
    host = Host()
    host.spawn_requested(spec(rule=None), 0.0)
    assert not host.meshes[1].set_restart_rule(RULE)
    assert host.meshes[1].procs[0].restarts is None


def test_what_never_came_up_at_first_is_told_at_once(host: Host) -> None:
    host = Host()
    host.spawn_requested(spec(), 0.0)
    host.forked("1.0", 100, 0.0)
    (told,) = host.ended("1.0", CRASH, 1.0)
    assert isinstance(told, Send)
    assert isinstance(told.message, ProcEnded)
    assert (told.message.kind, told.message.next_life) == ("never started", 0)


def test_what_has_been_up_once_is_tried_again_if_it_does_not_come_up(host: Host) -> None:
    host.ended("1.0", CRASH, 5.0)
    host.start_failed("1.0.1", "out of memory", 5.0)
    assert (the(host).state, the(host).life) == (ProcState.RESTARTING, 2)


def test_an_end_that_was_asked_for_is_no_failure(host: Host) -> None:
    host.told_to_stop("1.0")
    (told,) = host.ended("1.0", EXIT, 5.0)
    assert isinstance(told, Send)
    assert isinstance(told.message, ProcEnded)
    assert (told.message.kind, told.message.next_life) == ("stopped", 0)


def test_the_failure_of_an_actor_is_the_cause_of_the_end_of_its_process(host: Host) -> None:
    host.gave_up("1.0", BOOM, 5.0)
    host.gave_up("1.0", BOOM, 9.0)
    assert host.next_deadline() == 5.0 + CLEANUP_S
    actions = host.ended("1.0", Death(1, None, (), None, 3.0, "exited with status 1"), 6.0)
    (told,) = [a.message for a in actions if isinstance(a, Send)]
    assert isinstance(told, ProcEnded)
    assert told.failure == BOOM
    assert told.death.reason == BOOM.what
    assert the(host).gave_up is None


def test_one_that_gives_up_and_does_not_end_is_killed(host: Host) -> None:
    host.gave_up("1.0", BOOM, 5.0)
    assert host.time_passed(5.0 + CLEANUP_S) == [Kill("1.0", 100)]
    host.ended("1.0", CRASH, 16.0)
    assert the(host).life == 1


def test_a_stop_in_the_wait_for_a_restart_is_answered_at_once(host: Host) -> None:
    host.ended("1.0", CRASH, 5.0)
    up(host, "1.0.1", 101, 5.0)
    host.ended("1.0.1", CRASH, 6.0)
    actions = host.stop_requested(1, "client", "done", 5.0, 6.5)
    assert FreeMesh(1, ("1.0.2",)) in actions
    assert actions[-1] == Send("client", MeshStopped(1))


def test_whoever_asks_for_a_place_is_told_which_process_has_it(host: Host) -> None:
    assert host.watch_requested("1.0", "w", "client", place=True) == [
        Send("w", ProcLife(1, 0, 0, True))
    ]
    host.ended("1.0", CRASH, 5.0)
    assert host.watch_requested("1.0", "v", "client", place=True) == [
        Send("v", ProcLife(1, 0, 1, False))
    ]
    up(host, "1.0.1", 101, 5.0)
    told = [a.to for a in host.ended("1.0.1", CRASH, 6.0) if isinstance(a, Send)]
    assert told == ["client", "v", "w"]


def test_whoever_watches_a_life_that_is_over_is_told_so(host: Host) -> None:
    host.ended("1.0", CRASH, 5.0)
    (told,) = host.watch_requested("1.0", "w")
    assert isinstance(told, Send)
    assert isinstance(told.message, ProcEnded)
    assert (told.message.node, told.message.next_life) == ("1.0", 1)


def test_a_place_that_is_asked_for_before_its_mesh_is_answered_when_that_comes() -> None:
    host = Host()
    assert host.watch_requested("1.0", "w", "client", place=True) == []
    assert Send("w", ProcLife(1, 0, 0, False)) in host.spawn_requested(spec(), 0.0)


def test_meshes_of_a_life_that_is_over_are_stopped(host: Host) -> None:
    inner = spec("1.0", None)
    inner.mesh = 2
    host.spawn_requested(inner, 1.0)
    host.ended("1.0", CRASH, 5.0)
    assert host.meshes[2].stopping
    late = spec("1.0", None)
    late.mesh = 3
    host.spawn_requested(late, 6.0)
    assert host.meshes[3].stopping, "what it had asked for before is no mesh of the next life"


def test_news_of_a_life_that_is_over_changes_nothing(host: Host) -> None:
    host.ended("1.0", CRASH, 5.0)
    assert host.hello("1.0", 6.0) == []
    assert host.ended("1.0", CRASH, 6.0) == []
    assert host.forked("1.0", 100, 6.0) == [Kill("1.0", 100)]
    host.gave_up("1.0", BOOM, 6.0)
    assert the(host).gave_up is None


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 16), st.integers(0, 1000))
def test_each_life_has_one_name_that_tells_its_place(mesh: int, rank: int, life: int) -> None:
    node = proc_node(mesh, rank, life)
    assert parse_proc_node(node) == (mesh, rank)
    assert life_of(node) == life


@pytest.mark.parametrize("node", ["1.0.0", "1.0.", "1.0.01", "1.0.1.1", "1.0.-1", "1.0?", "1.0.x"])
def test_there_is_no_other_way_to_write_it(node: str) -> None:
    assert parse_proc_node(node) is None


# --- by request -----------------------------------------------------------------------------------


@pytest.fixture
def plain() -> Host:
    """A mesh of one rank that was spawned without a rule."""
    made = Host()
    made.spawn_requested(spec(rule=None), 0.0)
    up(made)
    return made


def test_a_dead_rank_of_a_mesh_without_a_rule_is_started_again_by_request(plain: Host) -> None:
    plain.watch_requested("1.0", "watcher")
    plain.ended("1.0", CRASH, 5.0)
    plain.watch_requested("1.0", "late")
    told = ProcEnded("1.0", 1, 0, 100, False, "proc died", CRASH, 1)
    assert plain.restart_requested(1, [0], CLEANUP_S, 6.0) == [
        RenewProc(1, 0, "1.0", "1.0.1"),
        Send("client", told), Send("late", told), Send("watcher", told),
        StartProc("1.0.1", plain.meshes[1].spec, 0),
    ]  # fmt: skip
    back = ProcLife(1, 0, 1, True)
    assert Send("client", back) in up(plain, "1.0.1", 101, 7.0)
    assert (the(plain).state, the(plain).life) == (ProcState.READY, 1)
    (final, *_) = [a.message for a in plain.ended("1.0.1", CRASH, 8.0) if isinstance(a, Send)]
    assert isinstance(final, ProcEnded)
    assert final.next_life == 0


def test_a_living_rank_is_told_to_end_and_started_again_when_it_has_ended(plain: Host) -> None:
    plain.watch_requested("1.0", "watcher")
    assert plain.restart_requested(1, [0], CLEANUP_S, 5.0) == [
        Send("1.0", StopProc(AGAIN, CLEANUP_S))
    ]
    assert plain.restart_requested(1, [0], CLEANUP_S, 5.0) == []
    assert plain.time_passed(5.0 + CLEANUP_S) == [Kill("1.0", 100)]
    plain.told_to_stop("1.0")
    actions = plain.ended("1.0", EXIT, 16.0)
    (told, *_) = [a.message for a in actions if isinstance(a, Send)]
    assert isinstance(told, ProcEnded)
    assert (told.kind, told.expected, told.next_life) == ("stopped", False, 1)
    assert told.death.reason == AGAIN
    assert actions[-1] == StartProc("1.0.1", plain.meshes[1].spec, 0)
    assert the(plain).state is ProcState.STARTING


def test_a_stop_of_the_mesh_forgets_the_request(plain: Host) -> None:
    plain.restart_requested(1, [0], CLEANUP_S, 5.0)
    plain.stop_requested(1, "client", "done", CLEANUP_S, 6.0)
    with pytest.raises(ValueError, match="has been stopped"):
        plain.restart_requested(1, [0], CLEANUP_S, 6.0)
    actions = plain.ended("1.0", EXIT, 7.0)
    assert actions[-1] == Send("client", MeshStopped(1))
    assert not any(isinstance(action, StartProc) for action in actions)


def test_nothing_is_restarted_where_a_rank_is_not_on_the_host(plain: Host) -> None:
    plain.ended("1.0", CRASH, 5.0)
    with pytest.raises(ValueError, match="rank 3 is not on this host"):
        plain.restart_requested(1, [0, 3], CLEANUP_S, 6.0)
    assert the(plain).state is ProcState.ENDED


def test_a_rank_that_waits_for_its_restart_is_started_now(host: Host) -> None:
    host.ended("1.0", CRASH, 5.0)
    up(host, "1.0.1", 101, 5.0)
    host.ended("1.0.1", CRASH, 6.0)
    assert the(host).state is ProcState.RESTARTING
    assert host.restart_requested(1, [0], CLEANUP_S, 6.1) == [
        StartProc("1.0.2", host.meshes[1].spec, 0)
    ]


def test_other_procs_of_the_host_hear_of_a_restart_that_was_requested() -> None:
    host = Host()
    host.spawn_requested(spec(rule=None, ranks=2), 0.0)
    for rank in range(2):
        up(host, f"1.{rank}", 100 + rank)
    host.ended("1.0", CRASH, 5.0)
    told = [a.to for a in host.restart_requested(1, [0], 1.0, 6.0) if isinstance(a, Send)]
    assert told == ["1.1", "client"]


def test_a_request_forgets_the_deaths_that_have_used_up_the_limit(host: Host) -> None:
    for life in range(3):
        node = proc_node(1, 0, life)
        host.ended(node, CRASH, 5.0)
        host.time_passed(10.0)
        up(host, proc_node(1, 0, life + 1), 101, 10.0)
    assert the(host).state is ProcState.ENDED
    host.restart_requested(1, [0], CLEANUP_S, 11.0)
    up(host, "1.0.3", 103, 11.0)
    host.ended("1.0.3", CRASH, 12.0)
    assert (the(host).state, the(host).life) == (ProcState.STARTING, 4)


# --- every order ----------------------------------------------------------------------------------


@dataclass
class World:
    """One mesh of one rank, and what a driver and the process would do next."""

    host: Host = field(default_factory=Host)
    by_request: bool = False
    now: float = 0.0
    to_fork: set[str] = field(default_factory=set[str])
    alive: dict[str, int] = field(default_factory=dict[str, int])
    greeted: set[str] = field(default_factory=set[str])
    killed: set[str] = field(default_factory=set[str])
    asked: frozenset[str] = frozenset()
    told: Counter[tuple[object, ...]] = field(default_factory=Counter[tuple[object, ...]])
    renewed: int = 0
    freed: int = 0
    story: list[str] = field(default_factory=list[str])

    def carry_out(self, actions: list[Action]) -> None:
        """Do what the driver would."""
        self.host.validate()
        for action in actions:
            match action:
                case StartProc(node=node):
                    assert not self.alive, "a place has one process at a time"
                    assert life_of(node) == self.renewed
                    self.to_fork.add(node)
                case Kill(node=node, pid=pid):
                    assert self.alive.get(node) == pid
                    self.killed.add(node)
                case RenewProc(old=old, new=new):
                    assert (life_of(old), life_of(new)) == (self.renewed, self.renewed + 1)
                    self.renewed += 1
                    self.told.pop(("client", "final"), None)
                case FreeMesh():
                    self.freed += 1
                case Send(to=to, message=message):
                    if isinstance(message, ProcEnded):
                        self.told[to, message.node, message.next_life] += 1
                        if not message.next_life:
                            self.told[to, "final"] += 1

    def possible(self) -> list[str]:
        """Everything that can happen next, by name."""
        found = [f"{what} {n}" for n in self.to_fork for what in ("fork", "fail")]
        found += [f"end {n}" for n in self.alive]
        found += [f"hello {n}" for n in self.alive if n not in self.greeted]
        found += [f"ask give_up {n}" for n in self.greeted if n in self.alive]
        found += ["ask stop", "ask lose", *(["ask restart"] if self.by_request else [])]
        if self.host.next_deadline() is not None:
            found.append("wait")
        return [what for what in found if what not in self.asked]

    def happen(self, what: str) -> None:
        """One event, and what follows from it."""
        self.story.append(what)
        host, now = self.host, self.now
        if what.startswith("ask"):
            self.asked |= {what}
        match what.split():
            case ["fork", node]:
                self.to_fork.discard(node)
                self.alive[node] = 100 + life_of(node)
                self.carry_out(host.forked(node, self.alive[node], now))
            case ["fail", node]:
                self.to_fork.discard(node)
                self.carry_out(host.start_failed(node, "no memory", now))
            case ["hello", node]:
                self.greeted.add(node)
                self.carry_out(host.hello(node, now))
            case ["end", node]:
                del self.alive[node]
                self.killed.discard(node)
                self.carry_out(host.ended(node, CRASH, now))
            case ["ask", "give_up", node]:
                host.gave_up(node, BOOM, now)
            case ["ask", "stop"]:
                self.carry_out(host.stop_requested(1, "client", "done", 5.0, now))
            case ["ask", "restart"]:
                if 1 in host.meshes and not host.meshes[1].stopping:
                    self.carry_out(host.restart_requested(1, [0], 5.0, now))
            case ["ask", "lose"]:
                self.carry_out(host.node_lost("client", now))
            case ["wait"]:
                self.now = max(now, host.next_deadline() or now)
                if self.to_fork and self.now > now:  # a zygote that hangs is another story
                    self.to_fork.clear()
                self.carry_out(host.time_passed(self.now))
            case _:
                raise AssertionError(what)

    def key(self) -> object:
        """Equal for worlds in which the same can follow."""
        mesh = self.host.meshes.get(1)
        proc = None if mesh is None else mesh.procs[0]
        of_proc = proc and (
            proc.state, proc.node, proc.pid, proc.said_hello, proc.expected, proc.killed_for,
            proc.deadline is None, proc.gave_up is None, proc.asked_again, len(proc.told),
            proc.restarts and len(proc.restarts.recent), mesh and mesh.stopping,
        )  # fmt: skip
        return (
            self.by_request, of_proc, frozenset(self.to_fork), frozenset(self.alive),
            frozenset(self.greeted), frozenset(self.killed), self.asked,
            frozenset(self.told.items()), self.freed,
        )  # fmt: skip


def test_in_every_order_a_place_has_one_process_at_a_time_and_each_end_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves: set[tuple[ProcState, ProcState]] = set()
    move = Proc.move

    def noted_move(self: Proc, state: ProcState, now: float) -> None:
        moves.add((self.state, state))
        move(self, state, now)

    monkeypatch.setattr(Proc, "move", noted_move)
    by_rule, by_request = World(), World(by_request=True)
    by_rule.carry_out(by_rule.host.spawn_requested(spec(rule=EVER), 0.0))
    by_request.carry_out(by_request.host.spawn_requested(spec(rule=None), 0.0))
    seen: set[object] = set()
    waiting = deque([by_rule, by_request])
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
        assert all(times == 1 for times in world.told.values()), world.story
        assert world.renewed <= (1 if world.by_request else EVER.most), world.story
        if "ask lose" not in world.asked:
            proc = world.host.proc(proc_node(1, 0, world.renewed))
            over = proc is None or proc.state is ProcState.ENDED
            assert world.told["client", "final"] == over, world.story
        # From everywhere an end is reached at which nothing is left.
        if "ask lose" not in world.asked:
            world.happen("ask lose")
        for _ in range(20):
            if world.killed:
                world.happen(f"end {min(world.killed)}")
            elif world.host.meshes:
                world.happen("wait")
        assert not world.host.meshes, world.story
        assert world.freed == 1, world.story
    assert len(seen) > 200
    assert moves == {(a, b) for a in ProcState for b in TRANSITIONS[a]}
