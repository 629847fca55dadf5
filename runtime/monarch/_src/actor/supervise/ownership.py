"""The owners of meshes in this process: drivers of `OwnerLifecycle`.

Runs in: any process. Meshes are made, stop and fail on any thread. Each event enters a lifecycle
under its lock, and the resulting actions are carried out without the lock.
Owns: one `Supervisor` for each actor, and one for the process, which owns the meshes that are made
outside of actors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from monarch._src.actor.context import current
from monarch._src.actor.future import Future
from monarch._src.actor.supervise.state.supervision import (
    Action,
    AskSupervisor,
    Finalize,
    OwnerLifecycle,
    ReportFailure,
    RunCleanup,
    Stage,
    StopMesh,
)
from monarch._src.failures.report import MeshFailure, RankFailure, as_causes, of_bootstrap
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.local.waitable import Waitable

log = logging.getLogger("monarch.actor")

# The shares of its own time that an owner grants its meshes, and that it waits for them. The rest
# is for its own clean-up, so a tree of owners ends within the time of its root.
FOR_MESHES = 0.75
UNTIL_OVERDUE = 0.875


class OwnedMesh(Protocol):
    """A mesh, from the view of its owner."""

    name: str
    mesh: Any

    def record(self, failures: Sequence[RankFailure]) -> None:
        """Remember failed ranks, so that calls that include them are refused."""
        ...

    def describe_as_actor(self, failure: RankFailure, rank: int) -> RankFailure:
        """Describe the failure of a proc as the failure of this mesh's actor there."""
        ...

    def runs_on(self, procs: int, rank: int) -> bool:
        """Whether it is an actor mesh with an actor on that rank of the proc mesh."""
        ...

    def end(self, reason: str, grace_s: float) -> Future[None]:
        """Stop it within that time; done when nothing of the mesh is left."""
        ...


class Supervisor:
    """One owner: its lifecycle, and the meshes that it owns."""

    def __init__(
        self,
        request_check: Callable[[], None],
        report: Callable[[RankFailure], None],
        finalize: Callable[[], None],
    ) -> None:
        """The callbacks carry out actions, on the thread of any event; they must not block."""
        self._request_check = request_check
        self._report = report
        self._finalize = finalize
        self._lock = GuardedLock()
        self.lifecycle: OwnerLifecycle[RankFailure] = OwnerLifecycle()
        self.meshes: dict[int, OwnedMesh] = {}
        self.may_clean = Waitable()
        self.on_change: Callable[[], None] | None = None  # called after each event that had actions
        # Of its end: the reason that its meshes are stopped with, and the time for all of it.
        self.reason = ""
        self.grace_s = 0.0

    @property
    def is_living(self) -> bool:
        """Whether its end has not begun."""
        return self.lifecycle.stage is Stage.LIVING

    def own(self, uid: int, mesh: OwnedMesh, within: int) -> bool:
        """Add a mesh; False if the owner is ending, and the mesh must not be made."""
        with self._lock:
            owned = self.lifecycle.own(uid, within)
            if owned:
                self.meshes[uid] = mesh
        return owned

    def on_mesh_stopping(self, uid: int) -> None:
        """The owner stops that mesh."""
        with self._lock:
            actions = self.lifecycle.on_mesh_stopping(uid)
        self.carry_out(actions)

    def on_mesh_gone(self, uid: int) -> list[int]:
        """Nothing is left of that mesh; returns the uids of all removed meshes."""
        with self._lock:
            actions = self.lifecycle.on_mesh_gone(uid)
            removed = [uid for uid in self.meshes if uid not in self.lifecycle.meshes]
            for each in removed:
                del self.meshes[each]
        self.carry_out(actions)
        return removed

    def on_mesh_failed(self, uid: int, failures: Sequence[RankFailure]) -> bool:
        """Ranks of that mesh have failed.

        False if the mesh is stopping, which makes them no failure.
        """
        with self._lock:
            actions = self.lifecycle.on_mesh_failed(uid, list(failures))
            accepted = uid in self.lifecycle.faults
        self.carry_out(actions)
        return accepted

    def next_failure(self) -> MeshFailure | None:
        """At a safe point: the next failure to handle, if any."""
        with self._lock:
            found = self.lifecycle.next_failure()
            mesh = None if found is None else self.meshes.get(found[0])
        if found is None:
            return None
        name = found[1][0].mesh_name if mesh is None else mesh.name
        return MeshFailure(name, tuple(found[1]), None if mesh is None else mesh.mesh)

    def on_handled(self) -> None:
        """The failure under review has been handled."""
        with self._lock:
            actions = self.lifecycle.on_verdict(None)
        self.carry_out(actions)

    def stop(self, reason: str, grace_s: float) -> None:
        """Ask the owner to end."""
        self.reason, self.grace_s = reason, grace_s
        with self._lock:
            actions = self.lifecycle.on_stop_requested()
        self.carry_out(actions)

    def fail(
        self, failure: RankFailure, grace_s: float
    ) -> tuple[RankFailure, list[Action[RankFailure]]]:
        """Fail the owner.

        Returns the failure, with unhandled failures of its meshes as causes, and the actions, which
        the caller passes to `carry_out` when it is ready.
        """
        with self._lock:
            if self.lifecycle.stage is Stage.LIVING:
                self.reason, self.grace_s = f"its owner has failed: {failure.what}", grace_s
                failure = outcome_of(failure, self.lifecycle.unhandled())
            return failure, self.lifecycle.on_failed(failure)

    def on_grace_expired(self) -> None:
        """The time for the owner's meshes is up."""
        with self._lock:
            actions = self.lifecycle.on_grace_expired()
        self.carry_out(actions)

    def on_cleaned_up(self, failure: RankFailure | None = None) -> None:
        """The clean-up has ended."""
        with self._lock:
            actions = self.lifecycle.on_cleaned_up(failure)
        self.carry_out(actions)

    def report_now(self) -> None:
        """Report the failure to the owner's own owner, unless that is done."""
        with self._lock:
            actions = self.lifecycle.on_report_due()
        self.carry_out(actions)

    def carry_out(self, actions: Sequence[Action[RankFailure]]) -> None:
        """Carry out the actions of an event. Any thread, without the lock."""
        for action in actions:
            match action:
                case AskSupervisor():
                    self._request_check()
                case StopMesh(uid):
                    self._stop_mesh(uid)
                case RunCleanup():
                    self.may_clean.finish()
                case ReportFailure(failure):
                    self._report(failure)
                case Finalize():
                    self._finalize()
        if actions and self.on_change is not None:
            self.on_change()

    def _stop_mesh(self, uid: int) -> None:
        mesh = self.meshes.get(uid)
        if mesh is None:
            return
        try:
            mesh.end(self.reason, self.grace_s * FOR_MESHES)
        except Exception:
            log.exception("stopping the mesh %r with its owner failed", mesh.name)
            self.on_mesh_gone(uid)


def ended_supervisor(reason: str) -> Supervisor:
    """A supervisor whose owner has ended, for that reason; it can own no mesh."""

    def ignore(_: object = None) -> None:
        """No owner is left."""

    supervisor = Supervisor(ignore, ignore, ignore)
    supervisor.stop(reason, 0.0)
    supervisor.on_cleaned_up()
    return supervisor


def outcome_of(failure: RankFailure, causes: Sequence[RankFailure]) -> RankFailure:
    """A failure with the failures of the owner's meshes added to its causes."""
    added = [cause for cause in as_causes(causes) if cause not in failure.causes]
    return replace(failure, causes=as_causes([*failure.causes, *added])) if added else failure


class Process(msgspec.Struct, frozen=True):
    """The place of a process, for failures that belong to no actor."""

    mesh_name: str
    rank: int
    point: dict[str, int]
    host: str


class HasSupervisor(Protocol):
    """The runner of an actor."""

    @property
    def supervisor(self) -> Supervisor:
        """The actor's supervisor."""
        ...


class OwnedMeshes:
    """The owner of each mesh that this process owns."""

    def __init__(self, cells: dict[int, Any], ended: Callable[[int], Supervisor | None]) -> None:
        """`ended`: returns the supervisor of an actor that has ended; None for other uids."""
        self._cells = cells
        self._ended = ended
        self._supervisors: dict[int, Supervisor] = {}
        # Handles failures that no actor of this process owns: the client calls its fault hook, and
        # a proc reports them to the owner of its mesh.
        self.on_unhandled: Callable[[MeshFailure], None] | None = None
        # By mesh: code that handles its failures itself while it runs; see `handle_failures`.
        self._handlers: dict[int, list[Callable[[RankFailure], bool]]] = {}
        self.root = Supervisor(self._check_root, lambda _: None, lambda: None)

    def current_supervisor(self) -> Supervisor:
        """The supervisor that owns the meshes which the running code makes."""
        context = current.get()
        uid = 0 if context is None else context.actor_instance.actor_id.uid
        cell: HasSupervisor | None = self._cells.get(uid)
        if cell is None:
            return self._ended(uid) or self.root
        return cell.supervisor

    def own(self, uid: int, mesh: OwnedMesh, within: int = 0) -> None:
        """Give a mesh that the running code makes to its owner. `within`: its proc mesh.

        Raises:
            RuntimeError: the actor that makes the mesh is ending, and can own no more meshes.
        """
        supervisor = self.current_supervisor()
        if not supervisor.own(uid, mesh, within):
            raise RuntimeError(
                f"{mesh.name!r} cannot be made: the actor that asks for it is ending "
                f"({supervisor.reason}), and would leave it behind"
            )
        self._supervisors[uid] = supervisor

    def on_mesh_stopping(self, uid: int) -> None:
        """The owner stops that mesh: ranks that die from here on are no failures."""
        supervisor = self._supervisors.get(uid)
        if supervisor is not None:
            supervisor.on_mesh_stopping(uid)

    def on_mesh_gone(self, uid: int) -> None:
        """Nothing is left of that mesh."""
        self._handlers.pop(uid, None)
        supervisor = self._supervisors.pop(uid, None)
        if supervisor is not None:
            for each in supervisor.on_mesh_gone(uid):
                self._supervisors.pop(each, None)

    def on_mesh_failed(
        self, uid: int, failures: Sequence[RankFailure], *, record: bool = True
    ) -> None:
        """Ranks of that mesh have failed. Called on the receiving thread.

        A failed bootstrap function does not reach the root owner unless it has ended its process,
        since each call of that rank raises the failure.
        """
        supervisor = self._supervisors.get(uid)
        mesh = None if supervisor is None else supervisor.meshes.get(uid)
        if supervisor is None or mesh is None:
            return
        if record:
            mesh.record(failures)
        for handles in list(self._handlers.get(uid, ())):
            failures = [failure for failure in failures if not handles(failure)]
        reported = failures
        if supervisor is self.root:
            reported = [f for f in failures if not of_bootstrap(f) or f.death is not None]
        if reported and not supervisor.on_mesh_failed(uid, reported):
            log.info("%s has failed while it was stopped: %s", mesh.name, reported[0].what)

    def handle_failures(
        self, uid: int, handles: Callable[[RankFailure], bool]
    ) -> Callable[[], None]:
        """Keep failures of that mesh from its owner while `handles` returns True for them.

        `handles` is called on the receiving thread, after the calls that wait for the rank have
        failed. Returns how to end this; the end of the mesh ends it too.
        """
        self._handlers.setdefault(uid, []).append(handles)

        def end() -> None:
            handlers = self._handlers.get(uid, [])
            if handles in handlers:
                handlers.remove(handles)

        return end

    def meshes_on(self, procs: int, rank: int) -> list[tuple[int, OwnedMesh]]:
        """Actor meshes with an actor on that proc, whose owner does not own the proc mesh."""
        below = self._supervisors.get(procs)
        return [
            (uid, mesh)
            for uid, supervisor in list(self._supervisors.items())
            if supervisor is not below
            and (mesh := supervisor.meshes.get(uid)) is not None
            and mesh.runs_on(procs, rank)
        ]

    def owns(self, supervisor: Supervisor, uid: int) -> bool:
        """Whether that supervisor owns that mesh."""
        return self._supervisors.get(uid) is supervisor

    def _check_root(self) -> None:
        while (fault := self.root.next_failure()) is not None:
            if self.on_unhandled is not None:
                self.on_unhandled(fault)
            self.root.on_handled()


def escalate(process: Process, fault: MeshFailure, why: str) -> RankFailure:
    """The failure of a process, for a mesh failure that no actor of it has handled."""
    return RankFailure(
        process.mesh_name, process.rank, process.point, "", None, process.host, os.getpid(),
        "not handled", "", why, causes=as_causes(fault.failures),
    )  # fmt: skip
