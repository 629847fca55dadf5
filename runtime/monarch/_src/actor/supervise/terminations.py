"""The ends of procs, meshes, actors and the host agent, as one process learns of them.

Runs in: any process, on the receiving thread.
Invariants: the end of a proc is handled after every message of it that can be received, and the end
of a mesh after those of its procs. Failures that arrive together are reported to an owner together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from monarch._src.actor.deliver.routes import Routes
from monarch._src.actor.future import Future
from monarch._src.actor.refs import Known, ProcsRef, out_of_reach
from monarch._src.actor.state.calls import CallTable
from monarch._src.actor.supervise.ownership import OwnedMeshes
from monarch._src.events import MeshStopped as MeshStoppedEvent
from monarch._src.events import RankFailed, RankRestarting, bus
from monarch._src.failures.report import Death, RankFailure
from monarch._src.host.state.death_notices import Notices
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT, site_of_agent
from monarch._src.wire.messages import (
    ActorFailed,
    Bootstrapped,
    MeshStopped,
    ProcEnded,
    ProcLife,
)

LOOK_AGAIN_S = 0.001  # until the next read, while a death notice waits for earlier messages


class Terminations:
    """Pending death notices, the failures to report, and the futures of stopping meshes."""

    def __init__(
        self,
        node: Node,
        known: Known,
        routes: Routes,
        calls: CallTable,
        answering: Any,
        new_future: Callable[[], Future[Any]],
        ownership: OwnedMeshes,
    ) -> None:
        """`answering` is the lock for entries of answers and ends into `calls`."""
        self._node = node
        self._known = known
        self._routes = routes
        self._calls = calls
        self._answering = answering
        self._new_future = new_future
        self._notices: Notices[ProcEnded | ProcLife | MeshStopped] = Notices()
        self._ownership = ownership
        # Failures of meshes that this process owns, reported when all messages are read. The key is
        # (proc mesh, None), (0, actor mesh), or, for actors on another owner's procs, both uids.
        self._failures: dict[tuple[int, int | None], list[RankFailure]] = {}
        self._stopping: dict[int, Future[None]] = {}
        # Of stopping meshes on several hosts: the sites where no process is left.
        self._stopped_at: dict[int, set[str]] = {}
        self.on_bootstrapped: Callable[[int, int, RankFailure | None], None] | None = None
        self.on_mesh_gone: Callable[[int], None] | None = None
        # A proc of a mesh on which this process has spawned actors is gone and restarts.
        self.on_restarting: Callable[[int, int], None] | None = None
        # A proc of a mesh is up, in an incarnation after its first: mesh, rank, incarnation.
        self.on_back: Callable[[int, int, int], None] | None = None
        # Called with failures before their owner handles them: those of procs of a mesh, or (with
        # mesh 0) of an actor mesh.
        self.on_failures: Callable[[int, int, list[RankFailure]], None] | None = None
        self.on_node_ended: Callable[[str], None] | None = None

    def stopping(self, mesh: int) -> Future[None]:
        """A future that is done when no process of that mesh is left."""
        future = self._stopping.get(mesh)
        if future is None:
            future = self._stopping[mesh] = self._new_future()
        return future

    def all_stopping(self) -> list[Future[None]]:
        """The futures of all meshes that are stopping."""
        return list(self._stopping.values())

    # --- messages ---------------------------------------------------------------------------------

    def on_proc_ended(self, _peer: str, message: ProcEnded, _payload: Payload) -> None:
        """A host agent reports that a process is gone."""
        self._notices.add(message, message.node, time.monotonic())

    def on_proc_life(self, _peer: str, message: ProcLife, _payload: Payload) -> None:
        """A host agent reports the incarnation of a rank, or that a rank has restarted."""
        self._notices.add(message, "", time.monotonic())

    def on_mesh_stopped(self, peer: str, message: MeshStopped, _payload: Payload) -> None:
        """A host agent reports that no process of a mesh is left on its host."""
        if self._emptied(message.mesh, self._node.site if peer == AGENT else site_of_agent(peer)):
            self._notices.add(message, "", time.monotonic())

    def on_site_emptied(self, mesh: int, site: str) -> None:
        """A stopping mesh has lost a site, whose agent is gone."""
        if self._emptied(mesh, site):
            self.stopping(mesh).settle(lambda: None)
            self._ownership.on_mesh_gone(mesh)

    def _emptied(self, mesh: int, site: str) -> bool:
        """Enter that no process of a mesh is left on a site; whether none is left anywhere."""
        ref = self._known.ref(mesh)
        if ref is None or len(ref.sites) < 2:
            return True
        emptied = self._stopped_at.setdefault(mesh, set())
        emptied.add(site)
        return emptied.issuperset(ref.sites)

    def on_actor_failed(self, _peer: str, message: ActorFailed, _payload: Payload) -> None:
        """An actor that this process has spawned has failed."""
        bus.emit(RankFailed(message.failure))
        about = (0, message.actor) if message.actor else (message.mesh, None)
        self._failures.setdefault(about, []).append(message.failure)

    def on_bootstrap_ended(self, _peer: str, message: Bootstrapped, _payload: Payload) -> None:
        """The bootstrap function of a proc has returned or raised."""
        failure = message.failure
        if self.on_bootstrapped is not None:
            self.on_bootstrapped(message.mesh, message.rank, failure)
        if failure is not None:
            bus.emit(RankFailed(failure))
            self._failures.setdefault((message.mesh, None), []).append(failure)

    # --- reports ----------------------------------------------------------------------------------

    def after_drain(self) -> bool:
        """Handle the notices that are due; True if the socket should be read again at once."""
        if self._notices.held:
            for notice in self._notices.due():
                self._report(notice)
            again = self._notices.poll(self._node.has_received_all)
            # Read once more before a notice is due; a process that keeps a pipe open is not
            # awaited.
            self._node.leader.drain_again_s = LOOK_AGAIN_S if self._notices else None
        else:
            again = False
        if self._failures:
            failures_by_mesh, self._failures = self._failures, {}
            for (mesh, actor), failures in failures_by_mesh.items():
                if self.on_failures is not None and not (mesh and actor):
                    self.on_failures(mesh, actor or 0, failures)
                uid = mesh if actor is None else actor
                self._ownership.on_mesh_failed(uid, failures, record=not mesh or actor is None)
        return again

    def _report(self, notice: ProcEnded | ProcLife | MeshStopped) -> None:
        if isinstance(notice, MeshStopped):
            self._on_mesh_gone(notice.mesh)
            return
        ref = self._known.ref(notice.mesh)
        if isinstance(notice, ProcLife):
            if ref is not None:
                self._on_incarnation_known(ref, notice)
        elif ref is not None and notice.next_life:
            self._on_proc_restarting(ref, notice)
        elif ref is not None:
            self._on_proc_lost(ref, notice)
        else:
            if notice.next_life:  # references to it may arrive later, made before its restart
                self._known.set_incarnation(notice.mesh, notice.rank, notice.next_life)
            self._node.forget(notice.node)
        if isinstance(notice, ProcEnded) and self.on_node_ended is not None:
            self.on_node_ended(notice.node)

    def _on_mesh_gone(self, mesh: int) -> None:
        future = self._stopping.pop(mesh, None)
        self._stopped_at.pop(mesh, None)
        ref = self._known.ref(mesh)
        if ref is not None:
            self._routes.forget(ref)  # while the incarnations are known
        self._known.forget(mesh)
        self._ownership.on_mesh_gone(mesh)
        if self.on_mesh_gone is not None:
            self.on_mesh_gone(mesh)
        if ref is not None:
            bus.emit(MeshStoppedEvent(f"{ref.uid:x}", ref.name))
        if future is not None:
            future.settle(lambda: None)

    def _on_incarnation_known(self, ref: ProcsRef, found: ProcLife) -> None:
        uid, rank = found.mesh, found.rank
        if found.up or ref.restarts != "raise" or rank in self._known.incarnations(uid):
            self._routes.on_proc_found(ref, rank, found.life)
            if found.up and self._known.incarnation(uid, rank) == found.life:
                self._known.mark_up(uid, rank)
                if self.on_back is not None:
                    self.on_back(uid, rank, found.life)
            return
        # The rank was down when this process first looked it up.
        death = Death(None, None, (), None, 0.0, "it has died, and is not up again yet")
        ended = ProcEnded(ref.node(rank), uid, rank, 0, False, "proc died", death)
        failure = replace(_failure(ref, ended), restarted=found.life)
        self._known.mark_down(uid, rank, failure)
        self._routes.on_proc_found(ref, rank, found.life, lost=True)
        with self._answering:
            self._calls.on_proc_lost(uid, rank, failure)

    def _on_proc_restarting(self, ref: ProcsRef, ended: ProcEnded) -> None:
        known, uid, rank = self._known, ended.mesh, ended.rank
        self._routes.begin_restarts(ref)
        owned = ref.owner == self._node.name
        # That process has called this one but was never called; or the restart is known already,
        # and an answer has opened a route to the old process again.
        answered_only = not owned and rank not in known.incarnations(uid)
        if answered_only or known.incarnation(uid, rank) >= ended.next_life:
            self._routes.drop(ended.node)
            return
        failure = replace(_failure(ref, ended), restarted=ended.next_life)
        known.mark_down(uid, rank, failure)
        lost = self._routes.proc_restarted(ref, rank, ended.next_life, self._calls)
        with self._answering:
            for number, position in lost:
                self._calls.on_rank_lost(number, position, failure)
        if self.on_restarting is not None:
            self.on_restarting(uid, rank)
        bus.emit(RankRestarting(failure, uid))

    def _on_proc_lost(self, ref: ProcsRef, ended: ProcEnded) -> None:
        failure = _failure(ref, ended)
        self._known.mark_dead(ref.uid, ended.rank, failure)
        self._node.forget(ended.node)
        if self._known.restarts(ref):
            self._routes.on_proc_found(ref, ended.rank, 0, lost=True)
        with self._answering:
            self._calls.on_proc_lost(ref.uid, ended.rank, failure)
        if not ended.expected:
            bus.emit(RankFailed(failure, ref.uid))
            if ref.owner == self._node.name:
                self._failures.setdefault((ref.uid, None), []).append(failure)
            for uid, mesh in self._ownership.meshes_on(ref.uid, ended.rank):
                failure_there = mesh.describe_as_actor(failure, ended.rank)
                self._failures.setdefault((ref.uid, uid), []).append(failure_there)

    def on_client_gone(self, client: ProcsRef, why: str) -> None:
        """In a proc: the client has changed or gone, and with it the actors in its process."""
        if 0 not in self._known.dead(client.uid):
            self._known.learn(client)
            failure = out_of_reach(client, 0, why)
            self._known.mark_dead(client.uid, 0, failure)
            with self._answering:
                self._calls.on_proc_lost(client.uid, 0, failure)
        self._routes.forget_client(client)

    def on_host_lost(self, reason: str, *, expected: bool, let_go: bool = False) -> None:
        """The host agent is gone, and its procs with it. Called on the receiving thread.

        `let_go`: the procs live on, but no longer belong to this process.
        """
        for ref in self._known.refs():
            if not ref.sites:
                self._ranks_lost(ref, ref.ranks_of(""), reason, expected=expected, let_go=let_go)
        for notice in self._notices.all():
            self._report(notice)
        self.after_drain()
        for mesh, future in list(self._stopping.items()):
            ref = self._known.ref(mesh)
            if ref is None or not ref.sites:
                self._stopping.pop(mesh, None)
                future.settle(lambda: None)

    def on_site_lost(self, site: str, reason: str, *, expected: bool, let_go: bool = False) -> None:
        """Another site is lost. This process treats all procs there as gone."""
        stopped: list[int] = []
        for ref in self._known.refs():
            if site not in ref.places:
                continue
            ranks = ref.ranks_of(site)
            self._ranks_lost(ref, ranks, reason, expected=expected, let_go=let_go)
            if ref.uid in self._stopping and self._emptied(ref.uid, site):
                stopped.append(ref.uid)
        for notice in self._notices.all():
            self._report(notice)
        self.after_drain()
        for mesh in stopped:
            self._on_mesh_gone(mesh)

    def on_ranks_gone(self, mesh: int, site: str, why: str) -> None:
        """A mesh of a resumed session has no process left on that site."""
        ref = self._known.ref(mesh)
        if ref is not None:
            self._ranks_lost(ref, ref.ranks_of(site), why, expected=False)

    def _ranks_lost(
        self, ref: ProcsRef, ranks: range, reason: str, *, expected: bool, let_go: bool = False
    ) -> None:
        dead = self._known.dead(ref.uid)
        for rank in ranks:
            if rank in dead:
                continue
            death = Death(None, None, (), None, 0.0, reason)
            stopping = expected or ref.uid in self._stopping
            kind = "out of reach" if let_go else "stopped" if stopping else "host lost"
            node = ref.node(rank, self._known.incarnation(ref.uid, rank))
            ended = ProcEnded(node, ref.uid, rank, 0, stopping, kind, death)
            self._notices.add(ended, node, 0.0)


def _failure(ref: ProcsRef, ended: ProcEnded) -> RankFailure:
    """The failure that callers and the owner of an ended proc receive."""
    if ended.failure is not None:  # an actor's failure has ended it
        return replace(ended.failure, death=ended.death, earlier=tuple(ended.earlier))
    return RankFailure(
        mesh_name=ref.name,
        rank=ended.rank,
        point=dict(ref.extent.point_of_rank(ended.rank)),
        actor_class="",
        endpoint=None,
        host=ref.host_of(ended.rank),
        pid=ended.pid or None,
        kind=ended.kind,  # pyright: ignore[reportArgumentType]
        exception_type="",
        message=ended.death.reason,
        death=ended.death,
        earlier=tuple(ended.earlier),
    )
