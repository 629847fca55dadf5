"""Who owns which mesh in this process, and what is done about it: the drivers of `OwnerLifecycle`.

Runs in: any process. Meshes are made, stopped and fail on any thread; every event of a life is
entered under its lock, and what follows from it is done outside.
Owns: one `Supervisor` an actor, and one for the process, which owns what is made where no actor
runs.
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

# Of the time that its end may take, an owner gives so much to what it owns, and waits a little
# longer for it; the rest is for its own clean-up. So a tree ends within the time of its top.
FOR_MESHES = 0.75
UNTIL_OVERDUE = 0.875


class OwnedMesh(Protocol):
    """A mesh, as its owner sees it."""

    name: str
    mesh: Any

    def record(self, failures: Sequence[RankFailure]) -> None:
        """Something of it has failed: refuse what includes that."""
        ...

    def describe_as_actor(self, failure: RankFailure, rank: int) -> RankFailure:
        """A failure of a proc, told of what of this mesh stood there."""
        ...

    def runs_on(self, procs: int, rank: int) -> bool:
        """Whether it is a mesh of actors, one of them on that proc of that mesh."""
        ...

    def end(self, reason: str, grace_s: float) -> Future[None]:
        """Stop it, within that time; done when nothing of it is left."""
        ...


class Supervisor:
    """One owner: its life, and the meshes that it has."""

    def __init__(
        self,
        request_check: Callable[[], None],
        report: Callable[[RankFailure], None],
        finalize: Callable[[], None],
    ) -> None:
        """Each is called on whichever thread something happens, and must not block."""
        self._request_check = request_check
        self._report = report
        self._finalize = finalize
        self._lock = GuardedLock()
        self.lifecycle: OwnerLifecycle[RankFailure] = OwnerLifecycle()
        self.meshes: dict[int, OwnedMesh] = {}
        self.may_clean = Waitable()
        self.on_change: Callable[[], None] | None = None  # after each event that had a consequence
        # How it is told to end: what its meshes are told, and how long all of it may take.
        self.reason = ""
        self.grace_s = 0.0

    @property
    def is_living(self) -> bool:
        """Whether it has not begun to end."""
        return self.lifecycle.stage is Stage.LIVING

    def own(self, uid: int, mesh: OwnedMesh, within: int) -> bool:
        """It makes a mesh; False: it ends, and must not."""
        with self._lock:
            owned = self.lifecycle.own(uid, within)
            if owned:
                self.meshes[uid] = mesh
        return owned

    def on_mesh_stopping(self, uid: int) -> None:
        """That mesh is being stopped."""
        with self._lock:
            actions = self.lifecycle.on_mesh_stopping(uid)
        self.carry_out(actions)

    def on_mesh_gone(self, uid: int) -> list[int]:
        """Nothing is left of that mesh; which ones went."""
        with self._lock:
            actions = self.lifecycle.on_mesh_gone(uid)
            went = [uid for uid in self.meshes if uid not in self.lifecycle.meshes]
            for each in went:
                del self.meshes[each]
        self.carry_out(actions)
        return went

    def on_mesh_failed(self, uid: int, failures: Sequence[RankFailure]) -> bool:
        """Something of that mesh has failed; False: it is being stopped, and that is no failure."""
        with self._lock:
            actions = self.lifecycle.on_mesh_failed(uid, list(failures))
            judges = uid in self.lifecycle.faults
        self.carry_out(actions)
        return judges

    def next_failure(self) -> MeshFailure | None:
        """At a safe point: what its supervisor is to be asked, if anything."""
        with self._lock:
            found = self.lifecycle.next_failure()
            mesh = None if found is None else self.meshes.get(found[0])
        if found is None:
            return None
        name = found[1][0].mesh_name if mesh is None else mesh.name
        return MeshFailure(name, tuple(found[1]), None if mesh is None else mesh.mesh)

    def on_handled(self) -> None:
        """Its supervisor has handled what it was asked about."""
        with self._lock:
            actions = self.lifecycle.on_verdict(None)
        self.carry_out(actions)

    def stop(self, reason: str, grace_s: float) -> None:
        """It is told to end."""
        self.reason, self.grace_s = reason, grace_s
        with self._lock:
            actions = self.lifecycle.on_stop_requested()
        self.carry_out(actions)

    def fail(
        self, failure: RankFailure, grace_s: float
    ) -> tuple[RankFailure, list[Action[RankFailure]]]:
        """It fails: as what that is to be told, what was not judged included; what is to be done.

        The caller does it (`do`) when it is ready for what follows.
        """
        with self._lock:
            if self.lifecycle.stage is Stage.LIVING:
                self.reason, self.grace_s = f"its owner has failed: {failure.what}", grace_s
                failure = outcome_of(failure, self.lifecycle.unhandled())
            return failure, self.lifecycle.on_failed(failure)

    def on_grace_expired(self) -> None:
        """It has waited long enough for its meshes."""
        with self._lock:
            actions = self.lifecycle.on_grace_expired()
        self.carry_out(actions)

    def on_cleaned_up(self, failure: RankFailure | None = None) -> None:
        """Its clean-up has ended."""
        with self._lock:
            actions = self.lifecycle.on_cleaned_up(failure)
        self.carry_out(actions)

    def report_now(self) -> None:
        """Its owner is to know by now."""
        with self._lock:
            actions = self.lifecycle.on_report_due()
        self.carry_out(actions)

    def carry_out(self, actions: Sequence[Action[RankFailure]]) -> None:
        """Carry out what follows from an event. Any thread, without the lock."""
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
    """One whose owner has ended, for that reason: it takes no mesh."""

    def ignore(_: object = None) -> None:
        """There is no owner left to tell."""

    supervisor = Supervisor(ignore, ignore, ignore)
    supervisor.stop(reason, 0.0)
    supervisor.on_cleaned_up()
    return supervisor


def outcome_of(failure: RankFailure, causes: Sequence[RankFailure]) -> RankFailure:
    """A failure, and what had failed before it of what it owns."""
    added = [cause for cause in as_causes(causes) if cause not in failure.causes]
    return replace(failure, causes=as_causes([*failure.causes, *added])) if added else failure


class Process(msgspec.Struct, frozen=True):
    """What a process is called where no actor of it can be named."""

    mesh_name: str
    rank: int
    point: dict[str, int]
    host: str


class HasSupervisor(Protocol):
    """What runs an actor."""

    @property
    def supervisor(self) -> Supervisor:
        """Its part of the tree."""
        ...


class OwnedMeshes:
    """Which owner of this process has which mesh."""

    def __init__(self, cells: dict[int, Any], ended: Callable[[int], Supervisor | None]) -> None:
        """`ended`: the owner that an actor which has ended is now; None of any other."""
        self._cells = cells
        self._ended = ended
        self._supervisors: dict[int, Supervisor] = {}
        # What becomes of failures that no actor here is to judge: at the client they are at the
        # top, a proc passes them on to whoever owns its mesh.
        self.on_unhandled: Callable[[MeshFailure], None] | None = None
        self.root = Supervisor(self._check_root, lambda _: None, lambda: None)

    def current_supervisor(self) -> Supervisor:
        """The owner of what is made by this code."""
        context = current.get()
        uid = 0 if context is None else context.actor_instance.actor_id.uid
        cell: HasSupervisor | None = self._cells.get(uid)
        if cell is None:
            return self._ended(uid) or self.root
        return cell.supervisor

    def own(self, uid: int, mesh: OwnedMesh, within: int = 0) -> None:
        """That mesh is being made by this code. `within`: the mesh of procs that it stands on.

        Raises:
            RuntimeError: the actor that runs this ends, and can own nothing more.
        """
        supervisor = self.current_supervisor()
        if not supervisor.own(uid, mesh, within):
            raise RuntimeError(
                f"{mesh.name!r} cannot be made: the actor that asks for it is ending "
                f"({supervisor.reason}), and would leave it behind"
            )
        self._supervisors[uid] = supervisor

    def on_mesh_stopping(self, uid: int) -> None:
        """That mesh is being stopped: what fails of it from here on is no failure."""
        supervisor = self._supervisors.get(uid)
        if supervisor is not None:
            supervisor.on_mesh_stopping(uid)

    def on_mesh_gone(self, uid: int) -> None:
        """Nothing is left of that mesh."""
        supervisor = self._supervisors.pop(uid, None)
        if supervisor is not None:
            for each in supervisor.on_mesh_gone(uid):
                self._supervisors.pop(each, None)

    def on_mesh_failed(
        self, uid: int, failures: Sequence[RankFailure], *, record: bool = True
    ) -> None:
        """Something of that mesh has failed. On the thread that receives.

        That of a bootstrap function is not judged at the top, unless it was the end of its process:
        each call that waits for that rank raises it.
        """
        supervisor = self._supervisors.get(uid)
        mesh = None if supervisor is None else supervisor.meshes.get(uid)
        if supervisor is None or mesh is None:
            return
        if record:
            mesh.record(failures)
        told = failures
        if supervisor is self.root:
            told = [f for f in failures if not of_bootstrap(f) or f.death is not None]
        if told and not supervisor.on_mesh_failed(uid, told):
            log.info("%s has failed while it was stopped: %s", mesh.name, told[0].what)

    def meshes_on(self, procs: int, rank: int) -> list[tuple[int, OwnedMesh]]:
        """Meshes of actors here, one of them on that proc, whose owner does not own the procs."""
        below = self._supervisors.get(procs)
        return [
            (uid, mesh)
            for uid, supervisor in list(self._supervisors.items())
            if supervisor is not below
            and (mesh := supervisor.meshes.get(uid)) is not None
            and mesh.runs_on(procs, rank)
        ]

    def owns(self, supervisor: Supervisor, uid: int) -> bool:
        """Whether that owner has that mesh, and so is told of its failures."""
        return self._supervisors.get(uid) is supervisor

    def _check_root(self) -> None:
        while (fault := self.root.next_failure()) is not None:
            if self.on_unhandled is not None:
                self.on_unhandled(fault)
            self.root.on_handled()


def escalate(process: Process, fault: MeshFailure, why: str) -> RankFailure:
    """What no actor of a process could judge, as a failure of that process."""
    return RankFailure(
        process.mesh_name, process.rank, process.point, "", None, process.host, os.getpid(),
        "not handled", "", why, causes=as_causes(fault.failures),
    )  # fmt: skip
