"""What a host agent knows and decides: which procs there are, and what follows from what. No I/O.

Events are methods named in the past tense; each returns the actions that follow, in order. The
driver (`monarch._src.proc.agent`) carries them out and reports back what came of them. `now` is
seconds on any clock that never goes back.

    STARTING --hello--> READY --stop--> STOPPING --ended--> ENDED
        |                 |                                   ^
        +----- ended / start failed --------------------------+

A mesh whose owner is gone is stopped by the agent itself: clean-up runs, then nothing is left.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from monarch._src.core.ids import parse_proc_node, proc_node
from monarch._src.errors import Death, FailureKind
from monarch._src.wire.messages import MeshStopped, Message, ProcEnded, SpawnProcs, StopProc


class ProcState(enum.Enum):
    """Where a proc is in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    ENDED = "ended"


TRANSITIONS: dict[ProcState, frozenset[ProcState]] = {
    ProcState.STARTING: frozenset({ProcState.READY, ProcState.STOPPING, ProcState.ENDED}),
    ProcState.READY: frozenset({ProcState.STOPPING, ProcState.ENDED}),
    ProcState.STOPPING: frozenset({ProcState.ENDED}),
    ProcState.ENDED: frozenset(),
}


class Proc(msgspec.Struct, eq=False):
    """One process of a mesh. `pid` is None until it exists; `deadline`: when it is killed."""

    node: str
    mesh: int
    rank: int
    asked_at: float
    deadline: float | None
    state: ProcState = ProcState.STARTING
    pid: int | None = None
    said_hello: bool = False
    expected: bool = False  # somebody asked for its end
    killed_for: str | None = None  # why the agent itself killed it, None if it did not
    death: Death | None = None
    kind: FailureKind = "proc died"
    story: list[tuple[float, ProcState]] = msgspec.field(
        default_factory=list[tuple[float, ProcState]]
    )


class Mesh(msgspec.Struct, eq=False):
    """The procs of one `spawn_procs`, by rank."""

    uid: int
    spec: SpawnProcs
    asked_at: float
    procs: list[Proc]
    stop_askers: list[str] = []
    stopping: bool = False

    @property
    def ended(self) -> bool:
        return all(p.state is ProcState.ENDED for p in self.procs)


class StartProc(msgspec.Struct, frozen=True):
    """Make the process of that rank; report `forked` or `start_failed`."""

    node: str
    spec: SpawnProcs
    rank: int


class Kill(msgspec.Struct, frozen=True):
    """SIGKILL that process; `ended` will follow."""

    node: str
    pid: int


class Send(msgspec.Struct, frozen=True):
    """Send a message to a node; one that is gone is no error."""

    to: str
    message: Message


class FreeMesh(msgspec.Struct, frozen=True):
    """Nothing of that mesh is left: give back what belongs to it."""

    mesh: int


Action: TypeAlias = StartProc | Kill | Send | FreeMesh


class Host:
    """All meshes of one host agent."""

    def __init__(self) -> None:
        self.meshes: dict[int, Mesh] = {}
        self._watchers: dict[str, set[str]] = {}
        self._gone: dict[str, ProcEnded] = {}  # ends of procs of meshes that still exist
        self._lost: set[str] = set()  # nodes that are no procs of ours, and are gone
        self._freed: dict[str, set[int]] = {}  # by owner that lives: its meshes that are gone
        self._early: dict[str, list[tuple[str, str]]] = {}  # by owner: (proc to come, watcher)

    # --- events -------------------------------------------------------------------------------

    def spawn_requested(self, spec: SpawnProcs, now: float) -> list[Action]:
        """An owner asks for a mesh. A uid that exists is refused with ValueError.

        An owner whose end was noticed before what it had asked for gets a mesh that ends at once.
        """
        if spec.mesh in self.meshes:
            raise ValueError(f"mesh {spec.mesh:x} exists already")
        count = 1
        for size in spec.sizes:
            count *= size
        procs = [
            Proc(proc_node(spec.mesh, rank), spec.mesh, rank, now, now + spec.startup_s)
            for rank in range(count)
        ]
        for proc in procs:
            proc.story.append((now, ProcState.STARTING))
            self._watchers[proc.node] = {spec.owner}
        self.meshes[spec.mesh] = Mesh(spec.mesh, spec, now, procs)
        for node, watcher in self._early.pop(spec.owner, ()):
            self.watch_requested(node, watcher, spec.owner)
        starts: list[Action] = [StartProc(proc.node, spec, proc.rank) for proc in procs]
        return starts + self.node_lost(spec.owner, now) if self._is_gone(spec.owner) else starts

    def forked(self, node: str, pid: int, now: float) -> list[Action]:
        """The process exists. One that nobody wants any more is killed at once."""
        proc = self._proc(node)
        if proc is None or proc.state is ProcState.ENDED:
            return [Kill(node, pid)]
        proc.pid = pid
        if proc.killed_for is None:
            return []
        proc.deadline = None
        return [Kill(node, pid)]

    def start_failed(self, node: str, reason: str, now: float) -> list[Action]:
        """There will be no process."""
        proc = self._proc(node)
        if proc is None or proc.state is ProcState.ENDED:
            return []
        death = Death(None, None, (), None, now - proc.asked_at, reason)
        return self._end(proc, death, "never started", now)

    def hello(self, node: str, now: float) -> list[Action]:
        """The proc has connected and is ready for actors."""
        proc = self._proc(node)
        if proc is None:
            return []
        proc.said_hello = True
        if proc.state is ProcState.STARTING:
            self._move(proc, ProcState.READY, now)
            proc.deadline = None
        return []

    def told_to_stop(self, node: str) -> None:
        """Its owner has told it to end, though what the owner told us may still be on its way."""
        proc = self._proc(node)
        if proc is not None:
            proc.expected = True

    def ended(self, node: str, death: Death, now: float) -> list[Action]:
        """The process is gone and has been reaped."""
        proc = self._proc(node)
        if proc is None or proc.state is ProcState.ENDED:
            return []
        kind: FailureKind = "proc died" if proc.said_hello else "never started"
        return self._end(proc, death, kind, now)

    def stop_requested(
        self, uid: int, asker: str, reason: str, grace_s: float, now: float
    ) -> list[Action]:
        """Somebody wants that mesh to end; it is told when no process of it is left.

        The asker has told the procs itself, behind the messages it had sent them before.
        """
        mesh = self.meshes.get(uid)
        if mesh is None:
            return [Send(asker, MeshStopped(uid))]
        mesh.stop_askers.append(asker)
        self._begin_stop(mesh, grace_s, now)
        return self._free_if_ended(mesh)

    def node_lost(self, node: str, now: float, why: str = "") -> list[Action]:
        """A process that may own meshes is gone: what it owned is stopped and cleaned up.

        `why` is the reason that these are told, if it is another.
        """
        if parse_proc_node(node) is None:
            self._lost.add(node)
        actions: list[Action] = []
        for mesh in list(self.meshes.values()):
            if mesh.spec.owner != node or mesh.stopping:
                continue
            reason = why or f"its owner {node} is gone"
            actions += [
                Send(p.node, StopProc(reason, mesh.spec.cleanup_s))
                for p in mesh.procs
                if p.said_hello and p.state is not ProcState.ENDED
            ]
            self._begin_stop(mesh, mesh.spec.cleanup_s, now)
            for proc in mesh.procs:
                if not proc.said_hello:  # nobody will ever tell it
                    actions += self._kill(proc, reason)
            actions += self._free_if_ended(mesh)
        for watchers in self._watchers.values():
            watchers.discard(node)
        for watched, watcher in self._early.pop(node, ()):  # it will not ask for that mesh any more
            actions += self.watch_requested(watched, watcher, node)
        for owner, early in self._early.items():
            self._early[owner] = [(proc, watcher) for proc, watcher in early if watcher != node]
        self._freed.pop(node, None)
        return actions

    def watch_requested(self, node: str, watcher: str, owner: str = "") -> list[Action]:
        """Somebody wants to know when that process ends; if it already has, now.

        `owner` made its mesh, as far as the watcher knows: what the owner asked for may arrive
        after the question of one that it has told of it.
        """
        ended = self._gone.get(node)
        if ended is not None:
            return [Send(watcher, ended)]
        if node in self._watchers:
            self._watchers[node].add(watcher)
            return []
        place = parse_proc_node(node)
        if place is None:
            return []
        if owner and not self._is_gone(owner) and place[0] not in self._freed.get(owner, ()):
            self._early.setdefault(owner, []).append((node, watcher))
            return []
        gone = Death(None, None, (), None, 0.0, "its mesh has been stopped")
        return [Send(watcher, ProcEnded(node, *place, 0, True, "stopped", gone))]

    def is_to_come(self, uid: int, owner: str) -> bool:
        """Whether that mesh may still be asked for: its owner lives, and it has not been freed."""
        known = uid in self.meshes or uid in self._freed.get(owner, ())
        return not known and not self._is_gone(owner)

    def time_passed(self, now: float) -> list[Action]:
        """Kill what has outlived its deadline; what was not even made by then has ended."""
        actions: list[Action] = []
        for mesh in list(self.meshes.values()):
            for proc in mesh.procs:
                if proc.deadline is None or now < proc.deadline:
                    continue
                waited = now - proc.asked_at
                if proc.state is ProcState.STARTING:
                    why = f"it did not answer within {waited:.1f} s of being started"
                else:
                    why = "it did not end within the time for clean-up"
                if proc.pid is None:  # a zygote that hangs must not keep anyone waiting
                    death = Death(None, None, (), None, waited, why)
                    actions += self._end(proc, death, "never started", now)
                else:
                    actions += self._kill(proc, why)
        return actions

    # --- questions ----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `time_passed` has something to do, or None."""
        times = [
            p.deadline for m in self.meshes.values() for p in m.procs if p.deadline is not None
        ]
        return min(times, default=None)

    def proc(self, node: str) -> Proc | None:
        """The proc of that name, if its mesh still exists."""
        return self._proc(node)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        for uid, mesh in self.meshes.items():
            assert uid == mesh.uid
            for rank, proc in enumerate(mesh.procs):
                assert (proc.mesh, proc.rank) == (uid, rank)
                assert (proc.state is ProcState.ENDED) == (proc.death is not None)
                assert (proc.node in self._gone) == (proc.state is ProcState.ENDED)
                assert (proc.node in self._watchers) == (proc.state is not ProcState.ENDED)
                assert proc.state is not ProcState.READY or proc.said_hello
                assert proc.state is not ProcState.ENDED or proc.deadline is None
                assert proc.deadline is None or proc.pid is None or proc.killed_for is None
                for (_, before), (_, after) in zip(proc.story, proc.story[1:], strict=False):
                    assert after in TRANSITIONS[before], f"{before} -> {after}"
            assert not (mesh.stopping and mesh.ended), "an ended mesh that was stopped is freed"

    # --- inside -------------------------------------------------------------------------------

    def _proc(self, node: str) -> Proc | None:
        place = parse_proc_node(node)
        mesh = self.meshes.get(place[0]) if place else None
        if place is None or mesh is None or not 0 <= place[1] < len(mesh.procs):
            return None
        return mesh.procs[place[1]]

    def _is_gone(self, node: str) -> bool:
        if parse_proc_node(node) is None:
            return node in self._lost
        proc = self._proc(node)
        return proc is None or proc.state is ProcState.ENDED

    def _move(self, proc: Proc, state: ProcState, now: float) -> None:
        assert state in TRANSITIONS[proc.state], f"{proc.node}: {proc.state} -> {state}"
        proc.state = state
        proc.story.append((now, state))

    def _begin_stop(self, mesh: Mesh, grace_s: float, now: float) -> None:
        mesh.stopping = True
        for proc in mesh.procs:
            if proc.state in (ProcState.STARTING, ProcState.READY):
                self._move(proc, ProcState.STOPPING, now)
                proc.expected = True
                if proc.killed_for is None:
                    proc.deadline = now + grace_s

    def _kill(self, proc: Proc, why: str) -> list[Action]:
        if proc.state is ProcState.ENDED or proc.killed_for is not None:
            return []
        proc.killed_for = why
        if proc.pid is None:
            return []  # it is killed when it is made, or has ended at its deadline
        proc.deadline = None
        return [Kill(proc.node, proc.pid)]

    def _end(self, proc: Proc, death: Death, kind: FailureKind, now: float) -> list[Action]:
        if proc.killed_for is not None:
            death = Death(death.exit_code, death.signal_name, death.stderr_tail, death.endpoint,
                          death.ran_s, f"the host agent killed it: {proc.killed_for}")  # fmt: skip
        self._move(proc, ProcState.ENDED, now)
        proc.deadline = None
        proc.death = death
        proc.kind = "stopped" if proc.expected else kind
        ended = ProcEnded(
            proc.node, proc.mesh, proc.rank, proc.pid or 0, proc.expected, proc.kind, death
        )
        self._gone[proc.node] = ended
        told = self._watchers.pop(proc.node, set[str]())
        actions: list[Action] = [Send(node, ended) for node in sorted(told)]
        actions += self.node_lost(proc.node, now)
        mesh = self.meshes.get(proc.mesh)
        return actions if mesh is None else actions + self._free_if_ended(mesh)

    def _free_if_ended(self, mesh: Mesh) -> list[Action]:
        if not (mesh.stopping and mesh.ended):
            return []
        del self.meshes[mesh.uid]
        if not self._is_gone(mesh.spec.owner):
            self._freed.setdefault(mesh.spec.owner, set()).add(mesh.uid)
        for proc in mesh.procs:
            self._gone.pop(proc.node, None)
        free: Callable[[str], Action] = lambda asker: Send(asker, MeshStopped(mesh.uid))  # noqa: E731
        return [FreeMesh(mesh.uid), *(free(asker) for asker in mesh.stop_askers)]
