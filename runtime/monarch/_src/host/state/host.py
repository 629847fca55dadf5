"""The decisions of a host agent: which procs exist, and what follows from each event. No I/O.

Events are methods named in the past tense; each returns the actions that follow, in order. The
driver (`monarch._src.host.agent`) carries them out and reports their results as events. `now` is
seconds on any clock that never goes back. `host.state.procs` has the states of one proc.

A mesh whose owner has ended is stopped by the agent: clean-up runs, then the mesh is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from monarch._src.failures.report import Death, FailureKind, RankFailure
from monarch._src.host.state.procs import Mesh, Proc, ProcState
from monarch._src.host.state.restarts import Again, Final, Restarts
from monarch._src.wire.ids import life_of, parse_proc_node, proc_node
from monarch._src.wire.messages import (
    MeshStopped,
    Message,
    ProcEnded,
    ProcLife,
    SpawnProcs,
    StopProc,
)

AGAIN = "restarted by request"
"""The reason of an end that `restart_requested` has asked for."""
UNMET_S = 2.0
"""How long a process may take to say hello after its owner has ended, in seconds."""


class StartProc(msgspec.Struct, frozen=True):
    """Start the process of that rank; report `forked` or `start_failed`."""

    node: str
    spec: SpawnProcs
    rank: int


class Kill(msgspec.Struct, frozen=True):
    """SIGKILL that process; `ended` will follow."""

    node: str
    pid: int


class Send(msgspec.Struct, frozen=True):
    """Send a message to a node; the node may have ended."""

    to: str
    message: Message


class RenewProc(msgspec.Struct, frozen=True):
    """Release the resources of a rank's last incarnation; expect messages for the next one."""

    mesh: int
    rank: int
    old: str
    new: str


class FreeMesh(msgspec.Struct, frozen=True):
    """The mesh has ended: release its resources and those of its last procs."""

    mesh: int
    nodes: tuple[str, ...] = ()


Action: TypeAlias = StartProc | Kill | Send | RenewProc | FreeMesh


class Host:
    """All meshes of one host agent."""

    def __init__(self) -> None:
        self.meshes: dict[int, Mesh] = {}
        self._watchers: dict[str, set[str]] = {}
        self._ended_procs: dict[str, ProcEnded] = {}  # ends of procs of meshes that still exist
        self._drains_until: float | None = None  # when the host has been told to end: its last time
        self._lost_nodes: set[str] = set()  # nodes that have ended and are no procs of this host
        self._elsewhere: set[str] = set()  # procs of other hosts that own meshes here
        self._freed: dict[str, set[int]] = {}  # by living owner: its freed meshes
        # By owner: a proc of a future mesh, its watcher, and the `place` of `watch_requested`.
        self._early_watches: dict[str, list[tuple[str, str, bool]]] = {}

    # --- events -------------------------------------------------------------------------------

    def spawn_requested(self, spec: SpawnProcs, now: float) -> list[Action]:
        """An owner asks for a mesh. Raises ValueError if the uid exists.

        If the owner is already known to have ended, the mesh ends at once.
        """
        if spec.mesh in self.meshes:
            raise ValueError(f"mesh {spec.mesh:x} exists already")
        count = spec.count or spec.ranks
        procs = [
            Proc(proc_node(spec.mesh, rank), spec.mesh, rank, now, now + spec.startup_s)
            for rank in range(spec.first, spec.first + count)
        ]
        for proc in procs:
            if spec.restart is not None:
                proc.restarts = Restarts(spec.restart, proc.rank)
            proc.story.append((now, ProcState.STARTING))
            self._watchers[proc.node] = {spec.owner}
        self.meshes[spec.mesh] = Mesh(spec.mesh, spec, now, procs)
        watch_actions: list[Action] = []
        for node, watcher, place in self._early_watches.pop(spec.owner, ()):
            watch_actions += self.watch_requested(node, watcher, spec.owner, place=place)
        starts = watch_actions + [StartProc(proc.node, spec, proc.rank) for proc in procs]
        return starts + self.node_lost(spec.owner, now) if self._is_gone(spec.owner) else starts

    def forked(self, node: str, pid: int, now: float) -> list[Action]:
        """The process exists. If it is not wanted any more it is killed at once."""
        proc = self._proc(node)
        if proc is None or proc.state is ProcState.ENDED:
            return [Kill(node, pid)]
        proc.pid = pid
        if proc.killed_for is None:
            return []
        proc.deadline = None
        return [Kill(node, pid)]

    def start_failed(self, node: str, reason: str, now: float) -> list[Action]:
        """The process could not be started."""
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
        if proc.pending_stop is not None:
            pending, proc.pending_stop = proc.pending_stop, None
            if proc.killed_for is None:
                proc.deadline = now + pending.grace_s
                return [Send(node, pending)]
        if proc.state is not ProcState.STARTING:
            return []
        proc.move(ProcState.READY, now)
        proc.deadline = None
        if not proc.life:
            return []
        back = ProcLife(proc.mesh, proc.rank, proc.life, True)
        return [Send(watcher, back) for watcher in sorted(self._watchers[node])]

    def gave_up(self, node: str, failure: RankFailure, now: float) -> None:
        """The proc ends because an actor of it has failed; it has its time for clean-up."""
        proc = self._proc(node)
        if proc is None or proc.state not in (ProcState.STARTING, ProcState.READY):
            return
        if proc.gave_up is None and proc.killed_for is None:
            proc.gave_up = failure
            proc.deadline = now + self.meshes[proc.mesh].spec.cleanup_s

    def told_to_stop(self, node: str) -> None:
        """The owner has told the proc to end, before its request reached the agent."""
        proc = self._proc(node)
        if proc is not None:
            proc.expected = True

    def ended(self, node: str, death: Death, now: float) -> list[Action]:
        """The process has ended and has been reaped."""
        proc = self._proc(node)
        if proc is None or proc.state is ProcState.ENDED:
            return []
        kind: FailureKind = "proc died" if proc.said_hello else "never started"
        return self._end(proc, death, kind, now)

    def stop_requested(
        self, uid: int, asker: str, reason: str, grace_s: float, now: float
    ) -> list[Action]:
        """A node asks for the end of a mesh; it is answered when no process is left.

        That node has told the procs itself, after its earlier messages to them.
        """
        mesh = self.meshes.get(uid)
        if mesh is None:
            return [Send(asker, MeshStopped(uid))]
        mesh.stop_askers.append(asker)
        return self._begin_stop(mesh, grace_s, now) + self._free_if_ended(mesh)

    def restart_requested(
        self, uid: int, ranks: Collection[int], grace_s: float, now: float
    ) -> list[Action]:
        """Its owner wants these ranks of a mesh restarted: see `host.state.procs`.

        A rank that is being started is left as it is. Raises ValueError if the mesh is stopping, or
        a rank is not on this host; nothing is restarted then.
        """
        mesh = self.meshes.get(uid)
        if mesh is None or mesh.stopping:
            raise ValueError("it has been stopped")
        found = [mesh.at(rank) for rank in ranks]
        actions: list[Action] = []
        for rank, proc in zip(ranks, found, strict=True):
            if proc is None:
                raise ValueError(f"rank {rank} is not on this host")
        for proc in found:
            assert proc is not None
            match proc.state:
                case ProcState.ENDED:
                    if proc.restarts is not None:
                        proc.restarts.requested()
                    ended = replace(self._ended_procs.pop(proc.node), expected=False, earlier=[])
                    self._watchers[proc.node], proc.told = proc.told, set()
                    proc.expected, proc.pending_stop = False, None
                    self._watchers[proc.node] |= self._living()
                    actions += self._renew(mesh, proc, ended, now, now)
                case ProcState.RESTARTING:
                    actions += self._start_again(mesh, proc, now)
                case ProcState.READY if not proc.asked_again:
                    proc.asked_again = True
                    if proc.killed_for is None:
                        proc.deadline = now + grace_s
                        actions.append(Send(proc.node, StopProc(AGAIN, grace_s)))
                case _:
                    pass
        return actions

    def node_lost(
        self, node: str, now: float, why: str = "", spare: Collection[int] = ()
    ) -> list[Action]:
        """A process that may own meshes has ended: stop and clean up the meshes it owned.

        `why` replaces the reason that their procs are given. Meshes in `spare` go on under their
        old owner until another one has `inherited` them.
        """
        if parse_proc_node(node) is None or node in self._elsewhere:
            self._lost_nodes.add(node)
        actions: list[Action] = []
        for mesh in list(self.meshes.values()):
            if mesh.spec.owner != node or mesh.stopping or mesh.uid in spare:
                continue
            actions += self._stop(
                mesh, why or f"its owner {node} is gone", mesh.spec.cleanup_s, now
            )
        told = (proc.told for mesh in self.meshes.values() for proc in mesh.procs if proc.told)
        for watchers in (*self._watchers.values(), *told):
            watchers.discard(node)
        for watched, watcher, _ in self._early_watches.pop(node, ()):  # it asks for no more meshes
            actions += self.watch_requested(watched, watcher, node)
        for owner, early in self._early_watches.items():
            self._early_watches[owner] = [item for item in early if item[1] != node]
        self._freed.pop(node, None)
        return actions

    def drain(self, why: str, grace_s: float, now: float) -> list[Action]:
        """The host has been told to end: its procs end in order, within `grace_s` seconds.

        Until then no owner can shorten that time. The end of a proc is told as a death with the
        reason `why`, since no owner has asked for it. Meshes that stop already are left alone.
        """
        if self._drains_until is None:
            self._drains_until = now + grace_s
        actions: list[Action] = []
        for mesh in list(self.meshes.values()):
            if not mesh.stopping:
                for proc in mesh.procs:
                    proc.drained = why
                actions += self._stop(mesh, why, grace_s, now)
        return actions

    def owner_elsewhere(self, node: str) -> None:
        """A proc of another host is about to own a mesh here."""
        self._elsewhere.add(node)

    def cleared(self) -> None:
        """The owners of meshes here have ended; the next client starts from nothing."""
        assert not self.meshes
        for known in (
            self._lost_nodes,
            self._elsewhere,
            self._freed,
            self._early_watches,
            self._watchers,
        ):
            known.clear()

    def was_freed(self, uid: int) -> bool:
        """Whether that mesh existed here and has been freed."""
        return any(uid in freed for freed in self._freed.values())

    def inherited(self, uid: int, owner: str, address: str) -> list[ProcEnded]:
        """A mesh has a new owner.

        Returns the ends of its procs so far, which the new owner has to be told.
        """
        mesh = self.meshes[uid]
        before = mesh.spec.owner
        mesh.spec.owner, mesh.spec.owner_address = owner, address
        for proc in mesh.procs:
            if proc.state is not ProcState.ENDED:
                self._watchers[proc.node].discard(before)
                self._watchers[proc.node].add(owner)
        return [self._ended_procs[p.node] for p in mesh.procs if p.state is ProcState.ENDED]

    def watchers(self, node: str) -> set[str]:
        """The nodes that are told when that process ends."""
        return self._watchers.get(node, set[str]())

    def watch_requested(
        self, node: str, watcher: str, owner: str = "", *, place: bool = False
    ) -> list[Action]:
        """A node asks to be told when that process ends; if it has ended, it is told now.

        With `place` the node stands for its rank in whichever incarnation, and the answer says
        which one it is, unless the rank has ended for good. `owner` made the mesh, as far as the
        watcher knows: the owner's request for the mesh may arrive after this question.
        """
        where = parse_proc_node(node)
        if where is None:
            return []
        now_there = self._at(where)
        if now_there is not None and place:
            node = now_there.node
        ended = self._ended_procs.get(node)
        if ended is not None:
            if now_there is not None:
                now_there.told.add(watcher)
            return [Send(watcher, ended)]
        if now_there is not None and node in self._watchers:
            self._watchers[node].add(watcher)
            up = now_there.state is not ProcState.RESTARTING and now_there.said_hello
            life = ProcLife(*where, now_there.life, up)
            return [Send(watcher, life)] if place else []
        if now_there is not None and life_of(node) < now_there.life:
            gone = Death(None, None, (), None, 0.0, "it was started again since")
            ended = ProcEnded(node, *where, 0, False, "proc died", gone, now_there.life)
            return [Send(watcher, ended)]
        if owner and not self._is_gone(owner) and where[0] not in self._freed.get(owner, ()):
            self._early_watches.setdefault(owner, []).append((node, watcher, place))
            return []
        gone = Death(None, None, (), None, 0.0, "its mesh has been stopped")
        return [Send(watcher, ProcEnded(node, *where, 0, True, "stopped", gone))]

    def is_to_come(self, uid: int, owner: str) -> bool:
        """Whether that mesh may still be asked for: its owner lives and it was not freed."""
        known = uid in self.meshes or uid in self._freed.get(owner, ())
        return not known and not self._is_gone(owner)

    def time_passed(self, now: float) -> list[Action]:
        """Kill processes past their deadline; end those that were never started by then."""
        actions: list[Action] = []
        for mesh in list(self.meshes.values()):
            for proc in mesh.procs:
                if proc.deadline is None or now < proc.deadline:
                    continue
                if proc.state is ProcState.RESTARTING:
                    actions += self._start_again(mesh, proc, now)
                    continue
                waited = now - proc.asked_at
                if proc.state is ProcState.STARTING:
                    why = f"it did not answer within {waited:.1f} s of being started"
                else:
                    why = "it did not end within the time for clean-up"
                if proc.pid is None:  # the zygote may hang; watchers must not wait for it
                    death = Death(None, None, (), None, waited, why)
                    actions += self._end(proc, death, "never started", now)
                else:
                    actions += self._kill(proc, why)
        return actions

    # --- questions ----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """The time at which `time_passed` has something to do, or None."""
        times = [
            p.deadline for m in self.meshes.values() for p in m.procs if p.deadline is not None
        ]
        return min(times, default=None)

    def proc(self, node: str) -> Proc | None:
        """The proc of that name, if its mesh exists."""
        return self._proc(node)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        for uid, mesh in self.meshes.items():
            assert uid == mesh.uid
            mesh.validate()
            for proc in mesh.procs:
                assert (proc.node in self._ended_procs) == (proc.state is ProcState.ENDED)
                assert (proc.node in self._watchers) == (proc.state is not ProcState.ENDED)
            assert not (mesh.stopping and mesh.ended), "an ended mesh that was stopped is freed"

    # --- inside -------------------------------------------------------------------------------

    def _proc(self, node: str) -> Proc | None:
        place = parse_proc_node(node)
        proc = None if place is None else self._at(place)
        return proc if proc is not None and proc.node == node else None  # not an earlier one

    def _at(self, place: tuple[int, int]) -> Proc | None:
        mesh = self.meshes.get(place[0])
        return None if mesh is None else mesh.at(place[1])

    def _is_gone(self, node: str) -> bool:
        if parse_proc_node(node) is None or node in self._elsewhere:
            return node in self._lost_nodes
        proc = self._proc(node)
        return proc is None or proc.state is ProcState.ENDED

    def _stop(self, mesh: Mesh, reason: str, grace_s: float, now: float) -> list[Action]:
        """Tell the procs of a mesh to end, and begin its stop."""
        actions: list[Action] = [
            Send(p.node, StopProc(reason, grace_s))
            for p in mesh.procs
            if p.said_hello and p.state is not ProcState.ENDED
        ]
        actions += self._begin_stop(mesh, grace_s, now)
        for proc in mesh.procs:
            if proc.said_hello or proc.state is ProcState.ENDED:
                continue
            if proc.pid is None:  # no message will reach it
                actions += self._kill(proc, reason)
            elif proc.killed_for is None:  # its owner may have connected to it first
                proc.pending_stop = StopProc(reason, grace_s)
                proc.deadline = now + min(UNMET_S, grace_s)
        return actions + self._free_if_ended(mesh)

    def _begin_stop(self, mesh: Mesh, grace_s: float, now: float) -> list[Action]:
        mesh.stopping = True
        ends_at = max(now + grace_s, self._drains_until or 0.0)
        actions: list[Action] = []
        for proc in mesh.procs:
            if proc.state is ProcState.RESTARTING:  # no process exists, and none will be started
                proc.expected = True
                death = Death(None, None, (), None, 0.0, "its mesh was stopped")
                ended = ProcEnded(proc.node, proc.mesh, proc.rank, 0, True, "stopped", death)
                actions += self._ended_for_good(proc, ended, now)
            if proc.state in (ProcState.STARTING, ProcState.READY):
                proc.asked_again = False
                proc.move(ProcState.STOPPING, now)
                proc.expected = True
                if proc.killed_for is None:
                    proc.deadline = ends_at
            elif proc.state is ProcState.STOPPING and proc.deadline is not None:
                proc.deadline = min(proc.deadline, ends_at)  # the shorter time holds
        return actions

    def _kill(self, proc: Proc, why: str) -> list[Action]:
        if proc.state is ProcState.ENDED or proc.killed_for is not None:
            return []
        proc.killed_for = why
        if proc.pid is None:
            return []  # `forked` kills it, or `time_passed` ends it
        proc.deadline = None
        return [Kill(proc.node, proc.pid)]

    def _end(self, proc: Proc, death: Death, kind: FailureKind, now: float) -> list[Action]:
        if proc.killed_for is not None:
            death = replace(death, reason=f"the host agent killed it: {proc.killed_for}")
        if proc.gave_up is not None:
            death = replace(death, reason=proc.gave_up.what)
        if proc.drained is not None:
            proc.expected = False
            if death.signal_name is None and proc.killed_for is None:
                death = replace(death, reason=proc.drained)
        mesh = self.meshes.get(proc.mesh)
        if proc.asked_again and mesh is not None:
            return self._end_for_restart(mesh, proc, death, now)
        proc.death = death
        proc.kind = "stopped" if proc.expected else kind
        ended = ProcEnded(
            proc.node, proc.mesh, proc.rank, proc.pid or 0, proc.expected, proc.kind, death, 0,
            None if proc.expected else proc.gave_up,
        )  # fmt: skip
        if mesh is not None and self._may_be_restarted(mesh, proc):
            assert proc.restarts is not None
            match proc.restarts.died(death, now):
                case Again(at):
                    return self._renew(mesh, proc, ended, at, now)
                case Final(earlier):
                    ended.earlier = list(earlier)
        actions = self._ended_for_good(proc, ended, now)
        return actions if mesh is None else actions + self._free_if_ended(mesh)

    def _end_for_restart(self, mesh: Mesh, proc: Proc, death: Death, now: float) -> list[Action]:
        """A proc has ended whose rank `restart_requested` was asked for."""
        proc.asked_again = proc.expected = False
        proc.death, proc.kind = replace(death, reason=AGAIN), "stopped"
        if proc.restarts is not None:
            proc.restarts.requested()
        self._watchers[proc.node] |= self._living() - {proc.node}
        pid = proc.pid or 0
        ended = ProcEnded(proc.node, proc.mesh, proc.rank, pid, False, proc.kind, proc.death)
        return self._renew(mesh, proc, ended, now, now)

    def _living(self) -> set[str]:
        """The procs of this host, which may hold references from before a restart by request."""
        return {
            proc.node
            for mesh in self.meshes.values()
            for proc in mesh.procs
            if proc.said_hello and proc.state is not ProcState.ENDED
        }

    def _may_be_restarted(self, mesh: Mesh, proc: Proc) -> bool:
        if proc.restarts is None or mesh.stopping or proc.expected:
            return False
        return proc.said_hello or proc.life > 0  # a proc that never was ready would fail again

    def _ended_for_good(self, proc: Proc, ended: ProcEnded, now: float) -> list[Action]:
        proc.move(ProcState.ENDED, now)
        proc.deadline = None
        self._ended_procs[proc.node] = ended
        watchers = proc.told = self._watchers.pop(proc.node, set[str]())
        actions: list[Action] = [Send(node, ended) for node in sorted(watchers)]
        return actions + self.node_lost(proc.node, now)

    def _renew(
        self, mesh: Mesh, proc: Proc, ended: ProcEnded, at: float, now: float
    ) -> list[Action]:
        """An incarnation has ended and another follows, with the same watchers."""
        old = proc.node
        ended.next_life = proc.life + 1
        watchers = self._watchers.pop(old)
        watchers.discard(old)
        actions: list[Action] = [Send(watcher, ended) for watcher in sorted(watchers)]
        proc.life += 1
        proc.node = proc_node(proc.mesh, proc.rank, proc.life)
        self._watchers[proc.node] = watchers
        proc.move(ProcState.RESTARTING, now)
        del proc.story[:-1]  # each incarnation has a story of its own
        proc.pid, proc.deadline, proc.killed_for, proc.gave_up = None, at, None, None
        proc.said_hello = False
        actions.insert(0, RenewProc(proc.mesh, proc.rank, old, proc.node))
        actions += self.node_lost(old, now)
        return actions + (self._start_again(mesh, proc, now) if at <= now else [])

    def _start_again(self, mesh: Mesh, proc: Proc, now: float) -> list[Action]:
        proc.move(ProcState.STARTING, now)
        proc.asked_at, proc.deadline = now, now + mesh.spec.startup_s
        return [StartProc(proc.node, mesh.spec, proc.rank)]

    def _free_if_ended(self, mesh: Mesh) -> list[Action]:
        if not (mesh.stopping and mesh.ended):
            return []
        del self.meshes[mesh.uid]
        if not self._is_gone(mesh.spec.owner):
            self._freed.setdefault(mesh.spec.owner, set()).add(mesh.uid)
        for proc in mesh.procs:
            self._ended_procs.pop(proc.node, None)
        free: Callable[[str], Action] = lambda asker: Send(asker, MeshStopped(mesh.uid))  # noqa: E731
        nodes = tuple(proc.node for proc in mesh.procs)
        return [FreeMesh(mesh.uid, nodes), *(free(asker) for asker in mesh.stop_askers)]
