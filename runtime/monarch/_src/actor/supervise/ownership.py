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

    def note(self, failures: Sequence[RankFailure]) -> None:
        """Something of it has failed: refuse what includes that."""
        ...

    def told_of(self, failure: RankFailure, rank: int) -> RankFailure:
        """A failure of a proc, told of what of this mesh stood there."""
        ...

    def stands_on(self, procs: int, rank: int) -> bool:
        """Whether it is a mesh of actors, one of them on that proc of that mesh."""
        ...

    def end(self, reason: str, grace_s: float) -> Future[None]:
        """Stop it, within that time; done when nothing of it is left."""
        ...


class Supervisor:
    """One owner: its life, and the meshes that it has."""

    def __init__(
        self,
        ask: Callable[[], None],
        tell: Callable[[RankFailure], None],
        bury: Callable[[], None],
    ) -> None:
        """Each is called on whichever thread something happens, and must not block."""
        self._ask = ask
        self._tell = tell
        self._bury = bury
        self._lock = GuardedLock()
        self.life: OwnerLifecycle[RankFailure] = OwnerLifecycle()
        self.meshes: dict[int, OwnedMesh] = {}
        self.may_clean = Waitable()
        self.on_change: Callable[[], None] | None = None  # after each event that had a consequence
        # How it is told to end: what its meshes are told, and how long all of it may take.
        self.reason = ""
        self.grace_s = 0.0

    @property
    def lives(self) -> bool:
        """Whether it has not begun to end."""
        return self.life.stage is Stage.LIVING

    def own(self, uid: int, mesh: OwnedMesh, within: int) -> bool:
        """It makes a mesh; False: it ends, and must not."""
        with self._lock:
            owned = self.life.own(uid, within)
            if owned:
                self.meshes[uid] = mesh
        return owned

    def released(self, uid: int) -> None:
        """That mesh is being stopped."""
        with self._lock:
            actions = self.life.released(uid)
        self.do(actions)

    def gone(self, uid: int) -> list[int]:
        """Nothing is left of that mesh; which ones went."""
        with self._lock:
            actions = self.life.mesh_gone(uid)
            went = [uid for uid in self.meshes if uid not in self.life.meshes]
            for each in went:
                del self.meshes[each]
        self.do(actions)
        return went

    def mesh_failed(self, uid: int, failures: Sequence[RankFailure]) -> bool:
        """Something of that mesh has failed; False: it is being stopped, and that is no failure."""
        with self._lock:
            actions = self.life.mesh_failed(uid, list(failures))
            judges = uid in self.life.faults
        self.do(actions)
        return judges

    def judge(self) -> MeshFailure | None:
        """At a safe point: what its supervisor is to be asked, if anything."""
        with self._lock:
            found = self.life.judge()
            mesh = None if found is None else self.meshes.get(found[0])
        if found is None:
            return None
        name = found[1][0].mesh_name if mesh is None else mesh.name
        return MeshFailure(name, tuple(found[1]), None if mesh is None else mesh.mesh)

    def handled(self) -> None:
        """Its supervisor has handled what it was asked about."""
        with self._lock:
            actions = self.life.judged(None)
        self.do(actions)

    def stop(self, reason: str, grace_s: float) -> None:
        """It is told to end."""
        self.reason, self.grace_s = reason, grace_s
        with self._lock:
            actions = self.life.told_to_stop()
        self.do(actions)

    def fail(
        self, failure: RankFailure, grace_s: float
    ) -> tuple[RankFailure, list[Action[RankFailure]]]:
        """It fails: as what that is to be told, what was not judged included; what is to be done.

        The caller does it (`do`) when it is ready for what follows.
        """
        with self._lock:
            if self.life.stage is Stage.LIVING:
                self.reason, self.grace_s = f"its owner has failed: {failure.what}", grace_s
                failure = outcome_of(failure, self.life.unjudged())
            return failure, self.life.failed(failure)

    def had_its_time(self) -> None:
        """It has waited long enough for its meshes."""
        with self._lock:
            actions = self.life.had_its_time()
        self.do(actions)

    def cleaned_up(self, failure: RankFailure | None = None) -> None:
        """Its clean-up has ended."""
        with self._lock:
            actions = self.life.cleaned_up(failure)
        self.do(actions)

    def tell_now(self) -> None:
        """Its owner is to know by now."""
        with self._lock:
            actions = self.life.tell_now()
        self.do(actions)

    def do(self, actions: Sequence[Action[RankFailure]]) -> None:
        """Carry out what follows from an event. Any thread, without the lock."""
        for action in actions:
            match action:
                case AskSupervisor():
                    self._ask()
                case StopMesh(uid):
                    self._stop_mesh(uid)
                case RunCleanup():
                    self.may_clean.finish()
                case ReportFailure(failure):
                    self._tell(failure)
                case Finalize():
                    self._bury()
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
            self.gone(uid)


def ended_keeper(reason: str) -> Supervisor:
    """One whose owner has ended, for that reason: it takes no mesh."""

    def ignore(_: object = None) -> None:
        """There is no owner left to tell."""

    keeper = Supervisor(ignore, ignore, ignore)
    keeper.stop(reason, 0.0)
    keeper.cleaned_up()
    return keeper


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
    def keeper(self) -> Supervisor:
        """Its part of the tree."""
        ...


class OwnedMeshes:
    """Which owner of this process has which mesh."""

    def __init__(self, workers: dict[int, Any], ended: Callable[[int], Supervisor | None]) -> None:
        """`ended`: the owner that an actor which has ended is now; None of any other."""
        self._workers = workers
        self._ended = ended
        self._keepers: dict[int, Supervisor] = {}
        # What becomes of failures that no actor here is to judge: at the client they are at the
        # top, a proc passes them on to whoever owns its mesh.
        self.at_top: Callable[[MeshFailure], None] | None = None
        self.root = Supervisor(self._judge_root, lambda _: None, lambda: None)

    def keeper_here(self) -> Supervisor:
        """The owner of what is made by this code."""
        context = current.get()
        uid = 0 if context is None else context.actor_instance.actor_id.uid
        worker: HasSupervisor | None = self._workers.get(uid)
        if worker is None:
            return self._ended(uid) or self.root
        return worker.keeper

    def own(self, uid: int, mesh: OwnedMesh, within: int = 0) -> None:
        """That mesh is being made by this code. `within`: the mesh of procs that it stands on.

        Raises:
            RuntimeError: the actor that runs this ends, and can own nothing more.
        """
        keeper = self.keeper_here()
        if not keeper.own(uid, mesh, within):
            raise RuntimeError(
                f"{mesh.name!r} cannot be made: the actor that asks for it is ending "
                f"({keeper.reason}), and would leave it behind"
            )
        self._keepers[uid] = keeper

    def released(self, uid: int) -> None:
        """That mesh is being stopped: what fails of it from here on is no failure."""
        keeper = self._keepers.get(uid)
        if keeper is not None:
            keeper.released(uid)

    def gone(self, uid: int) -> None:
        """Nothing is left of that mesh."""
        keeper = self._keepers.pop(uid, None)
        if keeper is not None:
            for each in keeper.gone(uid):
                self._keepers.pop(each, None)

    def failed(self, uid: int, failures: Sequence[RankFailure], *, note: bool = True) -> None:
        """Something of that mesh has failed. On the thread that receives.

        That of a bootstrap function is not judged at the top, unless it was the end of its process:
        each call that waits for that rank raises it.
        """
        keeper = self._keepers.get(uid)
        mesh = None if keeper is None else keeper.meshes.get(uid)
        if keeper is None or mesh is None:
            return
        if note:
            mesh.note(failures)
        told = failures
        if keeper is self.root:
            told = [f for f in failures if not of_bootstrap(f) or f.death is not None]
        if told and not keeper.mesh_failed(uid, told):
            log.info("%s has failed while it was stopped: %s", mesh.name, told[0].what)

    def standing_on(self, procs: int, rank: int) -> list[tuple[int, OwnedMesh]]:
        """Meshes of actors here, one of them on that proc, whose owner does not own the procs."""
        below = self._keepers.get(procs)
        return [
            (uid, mesh)
            for uid, keeper in list(self._keepers.items())
            if keeper is not below
            and (mesh := keeper.meshes.get(uid)) is not None
            and mesh.stands_on(procs, rank)
        ]

    def owns(self, keeper: Supervisor, uid: int) -> bool:
        """Whether that owner has that mesh, and so is told of its failures."""
        return self._keepers.get(uid) is keeper

    def _judge_root(self) -> None:
        while (fault := self.root.judge()) is not None:
            if self.at_top is not None:
                self.at_top(fault)
            self.root.handled()


def escalate(process: Process, fault: MeshFailure, why: str) -> RankFailure:
    """What no actor of a process could judge, as a failure of that process."""
    return RankFailure(
        process.mesh_name, process.rank, process.point, "", None, process.host, os.getpid(),
        "not handled", "", why, causes=as_causes(fault.failures),
    )  # fmt: skip
