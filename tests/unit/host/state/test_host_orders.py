"""Every order in which things can happen to a host agent: each is told once, nothing is left."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from monarch._src.host.state.host import Action, FreeMesh, Host, Kill, Send, StartProc
from monarch._src.host.state.procs import TRANSITIONS, Proc, ProcState
from monarch._src.wire.ids import proc_node
from monarch._src.wire.messages import MeshStopped, ProcEnded
from tests.unit.host.state.hosts import CRASH, ENDED, spec

pytestmark = pytest.mark.slow


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
    move = Proc.move

    def noted_move(self: Proc, state: ProcState, now: float) -> None:
        moves.add((self.state, state))
        move(self, state, now)

    monkeypatch.setattr(Proc, "move", noted_move)
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
    # Those of procs that are started again: test_restarts.py.
    assert moves == {
        (a, b) for a in ProcState for b in TRANSITIONS[a] if ProcState.RESTARTING not in (a, b)
    }
