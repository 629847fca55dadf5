"""How a process hears of ends: of procs, of meshes, of actors, of its host agent.

Runs in: any process, on the thread that receives.
Invariants: the end of a proc is told after every message of it that can be received; the end of a
mesh after those of its procs. What one moment brings is told to an owner together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from monarch._src.actor.future import Future
from monarch._src.actor.refs import Known, ProcsRef
from monarch._src.actor.routes import Routes
from monarch._src.core.calls import CallTable
from monarch._src.core.notices import Notices
from monarch._src.errors import Death, RankFailure
from monarch._src.events import MeshStopped as MeshStoppedEvent
from monarch._src.events import RankFailed, bus
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import ActorFailed, Bootstrapped, MeshStopped, ProcEnded

LOOK_AGAIN_S = 0.001


class Ends:
    """What has been noticed, who is to be told, and who waits for it."""

    def __init__(
        self,
        node: Node,
        known: Known,
        routes: Routes,
        calls: CallTable,
        answering: Any,
        new_future: Callable[[], Future[Any]],
    ) -> None:
        """`answering` is the lock under which answers and ends are entered into `calls`."""
        self._node = node
        self._known = known
        self._routes = routes
        self._calls = calls
        self._answering = answering
        self._new_future = new_future
        self._notices: Notices[ProcEnded | MeshStopped] = Notices()
        self._owners: dict[int, int] = {}
        self._faults: dict[tuple[int, int | None], list[RankFailure]] = {}
        self._stopping: dict[int, Future[None]] = {}
        # Told of failures of what this process owns, those of one mesh and moment together:
        # the proc mesh's uid or 0, the actor mesh's uid or None, the failures.
        self.on_failure: Callable[[int, int | None, list[RankFailure]], None] | None = None
        self.on_bootstrapped: Callable[[int, int, RankFailure | None], None] | None = None
        self.on_mesh_gone: Callable[[int], None] | None = None

    def own(self, uid: int, actor: int) -> None:
        """That mesh, of procs or of actors, was made by this local actor (0: the client)."""
        self._owners[uid] = actor

    def owner_of(self, mesh: int, actor: int | None) -> int | None:
        """The local actor that made that actor mesh, or else that proc mesh."""
        return self._owners.get(mesh if actor is None else actor)

    def stopping(self, mesh: int) -> Future[None]:
        """The future that is done when no process of that mesh is left."""
        future = self._stopping.get(mesh)
        if future is None:
            future = self._stopping[mesh] = self._new_future()
        return future

    def stops(self) -> list[Future[None]]:
        """Those futures, of all meshes that are being stopped now."""
        return list(self._stopping.values())

    # --- messages ---------------------------------------------------------------------------------

    def on_proc_ended(self, _peer: str, message: ProcEnded, _payload: Payload) -> None:
        """The agent says that a process is gone."""
        self._notices.add(message, message.node, time.monotonic())

    def on_mesh_stopped(self, _peer: str, message: MeshStopped, _payload: Payload) -> None:
        """The agent says that nothing of a mesh is left."""
        self._notices.add(message, "", time.monotonic())

    def on_actor_failed(self, _peer: str, message: ActorFailed, _payload: Payload) -> None:
        """An actor that was spawned from here has failed."""
        bus.emit(RankFailed(message.failure))
        self._faults.setdefault((0, message.actor), []).append(message.failure)

    def on_bootstrap_ended(self, _peer: str, message: Bootstrapped, _payload: Payload) -> None:
        """The bootstrap function of a proc has returned, or raised."""
        failure = message.failure
        if self.on_bootstrapped is not None:
            self.on_bootstrapped(message.mesh, message.rank, failure)
        if failure is not None:
            bus.emit(RankFailed(failure))
            self._faults.setdefault((message.mesh, None), []).append(failure)

    # --- telling ----------------------------------------------------------------------------------

    def after_drain(self) -> bool:
        """Tell what is due; True if the socket should be looked at once more at once."""
        if self._notices:
            for notice in self._notices.due():
                self._tell(notice)
            again = self._notices.look(self._node.has_said_all)
            # A pipe's end comes from another thread, within a millisecond or so.
            self._node.baton.look_again_s = LOOK_AGAIN_S if self._notices else None
        else:
            again = False
        if self._faults:
            faults, self._faults = self._faults, {}
            for (mesh, actor), failures in faults.items():
                if self.on_failure is not None:
                    self.on_failure(mesh, actor, failures)
        return again

    def _tell(self, notice: ProcEnded | MeshStopped) -> None:
        if isinstance(notice, MeshStopped):
            self._mesh_gone(notice.mesh)
            return
        ref = self._known.ref(notice.mesh)
        if ref is not None:
            self._proc_lost(ref, notice)
        else:
            self._node.forget(notice.node)

    def _mesh_gone(self, mesh: int) -> None:
        future = self._stopping.pop(mesh, None)
        ref = self._known.forget(mesh)
        self._owners.pop(mesh, None)
        if self.on_mesh_gone is not None:
            self.on_mesh_gone(mesh)
        if ref is not None:
            self._routes.forget(ref)
            bus.emit(MeshStoppedEvent(f"{ref.uid:x}", ref.name))
        if future is not None:
            future.settle(lambda: None)

    def _proc_lost(self, ref: ProcsRef, ended: ProcEnded) -> None:
        failure = RankFailure(
            mesh_name=ref.name,
            rank=ended.rank,
            point=dict(ref.extent.point_of_rank(ended.rank)),
            actor_class="",
            endpoint=None,
            host=ref.host,
            pid=ended.pid or None,
            kind=ended.kind,  # pyright: ignore[reportArgumentType]
            exception_type="",
            message=ended.death.reason,
            death=ended.death,
        )
        self._known.died(ref.uid, ended.rank, failure)
        self._node.forget(ref.node(ended.rank))
        with self._answering:
            self._calls.proc_lost(ref.uid, ended.rank, failure)
        if not ended.expected:
            bus.emit(RankFailed(failure))
            if ref.owner == self._node.name:
                self._faults.setdefault((ref.uid, None), []).append(failure)

    def host_lost(self, reason: str, *, expected: bool) -> None:
        """The host agent is gone, and its procs with it. On the thread that holds the baton."""
        for ref in self._known.refs():
            dead = self._known.dead(ref.uid)
            for rank in range(ref.extent.nelements):
                if rank in dead:
                    continue
                death = Death(None, None, (), None, 0.0, reason)
                stopping = expected or ref.uid in self._stopping
                kind = "stopped" if stopping else "host lost"
                node = ref.node(rank)
                ended = ProcEnded(node, ref.uid, rank, 0, stopping, kind, death)
                self._notices.add(ended, node, 0.0)
        for notice in self._notices.all():
            self._tell(notice)
        self.after_drain()
        for mesh, future in list(self._stopping.items()):
            self._stopping.pop(mesh, None)
            future.settle(lambda: None)
