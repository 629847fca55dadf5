"""Who owns what, and what follows when one of them fails or is to end. No I/O, no clock, no locks.

A *life* is one owner: an actor, or a process itself, which owns what is made where no actor runs.
It owns meshes, whose actors live elsewhere and have lives of their own; so the tree of a program is
spread over its processes, and what joins its parts are messages: down, that a mesh is to stop; up,
that something of it has failed, or that nothing of it is left. Events are methods; each returns the
actions that follow, in order. The drivers (`monarch._src.actor.supervise.ownership`) carry them
out.

    LIVING --told to stop, or failed--> ENDING --meshes gone, or overdue--> CLEANING --> GONE

While it lives, a failure of a mesh is *judged* by its owner, one at a time; those that come
meanwhile are judged together, mesh by mesh. Not handled, the failure is the owner's own, with what
had failed as its causes. An owner that ends stops what it owns, waits until nothing of that is left
or until that has had its time, and then cleans up itself; nothing that fails meanwhile is judged.
"""

from __future__ import annotations

import enum
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

import msgspec

F = TypeVar("F")


class Stage(enum.Enum):
    """Where an owner is in its life."""

    LIVING = "living"  # it takes messages, and may come to own more
    ENDING = "ending"  # what it owns is being stopped
    CLEANING = "cleaning"  # nothing of that is left, or it has had its time: clean-up runs
    GONE = "gone"


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.LIVING: frozenset({Stage.ENDING}),
    Stage.ENDING: frozenset({Stage.CLEANING}),
    Stage.CLEANING: frozenset({Stage.GONE}),
    Stage.GONE: frozenset(),
}


class AskSupervisor(msgspec.Struct, frozen=True):
    """Something is to be judged: call `judge` at the next safe point."""


class StopMesh(msgspec.Struct, frozen=True):
    """Stop that mesh; report `mesh_gone`."""

    uid: int


class RunCleanup(msgspec.Struct, frozen=True):
    """Run its clean-up now; report `cleaned_up`."""


class ReportFailure(msgspec.Struct, Generic[F], frozen=True):
    """Tell its own owner that it has failed."""

    failure: F


class Finalize(msgspec.Struct, frozen=True):
    """Nothing of it runs any more: answer whoever waits for its end."""


Action: TypeAlias = "AskSupervisor | StopMesh | RunCleanup | ReportFailure[F] | Finalize"


class _Mesh(msgspec.Struct):
    """One mesh that it owns. `within`: another of its meshes, on whose procs this one stands."""

    within: int
    stopping: bool = False


class OwnerLifecycle(msgspec.Struct, Generic[F]):
    """One owner. F is what a failure is told as; nothing here looks into it."""

    stage: Stage = Stage.LIVING
    meshes: dict[int, _Mesh] = {}
    # What is to be judged, by mesh, in the order in which it began. All and only while LIVING, of
    # meshes that are not being stopped.
    faults: dict[int, list[F]] = {}
    ask_pending: bool = False  # an Ask is on its way, for `faults`
    under_review: tuple[int, list[F]] | None = None  # what its supervisor has been asked about
    to_stop: bool = False  # as soon as nothing is left to be judged
    failure: F | None = None  # of what it died; None: it was stopped
    reported: bool = False  # its owner knows of `failure`
    overdue: bool = False  # it did not wait for the last of its meshes
    story: list[tuple[str, Stage]] = []

    # --- what it owns -------------------------------------------------------------------------

    def own(self, uid: int, within: int = 0) -> bool:
        """It makes a mesh. False: it must not any more, and nothing may be made."""
        if self.stage is not Stage.LIVING:
            return False
        self.meshes[uid] = _Mesh(within if within in self.meshes else 0)
        return True

    def on_mesh_stopping(self, uid: int) -> list[Action[F]]:
        """It stops a mesh by its own will: what had failed of it is settled by that."""
        if uid in self.meshes:
            for found in self._with(uid):
                self.meshes[found].stopping = True
                self.faults.pop(found, None)
        return self._next()

    def on_mesh_gone(self, uid: int) -> list[Action[F]]:
        """Nothing is left of a mesh."""
        if uid in self.meshes:
            for found in self._with(uid):
                del self.meshes[found]
                self.faults.pop(found, None)
        return self._clean_if_alone("mesh gone") or self._next()

    def on_mesh_failed(self, uid: int, faults: list[F]) -> list[Action[F]]:
        """Something of a mesh has failed. Of one that is being stopped that is no failure."""
        mesh = self.meshes.get(uid)
        if self.stage is Stage.LIVING and mesh is not None and not mesh.stopping:
            self.faults.setdefault(uid, []).extend(faults)
        return self._next()

    # --- failures of its meshes -------------------------------------------------------------

    def next_failure(self) -> tuple[int, list[F]] | None:
        """It is at a safe point: what its supervisor is to be asked, of one mesh, if anything."""
        if self.under_review is not None or not self.faults:
            return None
        uid = next(iter(self.faults))
        self.under_review = uid, self.faults.pop(uid)
        self.ask_pending = False
        return self.under_review

    def on_verdict(self, failure: F | None) -> list[Action[F]]:
        """Its supervisor has answered: handled (None), or what it dies of, causes included."""
        self.under_review = None
        return self._next() if failure is None else self.on_failed(failure)

    def unhandled(self) -> list[F]:
        """What has failed and is not handled: the causes of its own failure, should it fail now."""
        now = [] if self.under_review is None else self.under_review[1]
        return [*now, *(fault for faults in self.faults.values() for fault in faults)]

    # --- its end ------------------------------------------------------------------------------

    def on_stop_requested(self) -> list[Action[F]]:
        """It is to end, behind what it has to judge."""
        if self.stage is Stage.LIVING:
            self.to_stop = True
        return self._next()

    def on_failed(self, failure: F) -> list[Action[F]]:
        """It has failed. The first failure stands; one while it stops makes that a failure too."""
        if self.stage is Stage.LIVING:
            self.failure = failure
            return self._end("failed")
        if self.stage is not Stage.GONE and self.failure is None:
            self.failure = failure
        return []

    def on_grace_expired(self) -> list[Action[F]]:
        """It has waited for its meshes for as long as it may."""
        if self.stage is not Stage.ENDING:
            return []
        self.overdue = True
        self._move("overdue", Stage.CLEANING)
        return [RunCleanup()]

    def on_cleaned_up(self, failure: F | None = None) -> list[Action[F]]:
        """Its clean-up has ended; `failure`: in that it raised, and nothing had failed before."""
        if self.stage is not Stage.CLEANING:
            return []
        self.failure = failure if self.failure is None else self.failure
        self._move("cleaned up", Stage.GONE)
        return [*self.on_report_due(), Finalize()]

    def on_report_due(self) -> list[Action[F]]:
        """Its owner is to know by now, whether it has cleaned up or not."""
        if self.failure is None or self.reported:
            return []
        self.reported = True
        return [ReportFailure(self.failure)]

    # --- questions ----------------------------------------------------------------------------

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        lives = self.stage is Stage.LIVING
        stages = [Stage.LIVING, *(stage for _, stage in self.story)]
        for before, after in pairwise(stages):
            assert after in TRANSITIONS[before], f"{before} -> {after}"
        assert stages[-1] is self.stage
        assert not self.ask_pending or (self.faults and self.under_review is None), "an Ask in vain"
        assert self.ask_pending or not self.faults or self.under_review, (
            "a failure that nobody judges"
        )
        for uid, faults in self.faults.items():
            assert faults, "an empty failure"
            assert lives, "judged after its end"
            assert not self.meshes[uid].stopping, "a failure of what is being stopped"
        assert not (lives and self.to_stop) or self.faults or self.under_review, (
            "told to stop, and not"
        )
        for uid, mesh in self.meshes.items():
            assert lives or mesh.stopping, f"mesh {uid} outlives its owner"
            above = self.meshes.get(mesh.within)
            assert above is None or mesh.stopping or not above.stopping
        if self.stage in (Stage.CLEANING, Stage.GONE):
            assert not self.meshes or self.overdue, "it cleaned up before what it owns"
        assert not self.reported or self.failure is not None
        assert self.stage is not Stage.GONE or self.reported == (self.failure is not None)

    # --- inside -------------------------------------------------------------------------------

    def _with(self, uid: int) -> list[int]:
        return [uid, *(other for other, mesh in self.meshes.items() if mesh.within == uid)]

    def _next(self) -> list[Action[F]]:
        """What is to be done now about what is to be judged, or about the end that waits for it."""
        if not self.faults:
            self.ask_pending = False
        if self.stage is not Stage.LIVING or self.under_review is not None or self.ask_pending:
            return []
        if self.faults:
            self.ask_pending = True
            return [AskSupervisor()]
        return self._end("told to stop") if self.to_stop else []

    def _end(self, event: str) -> list[Action[F]]:
        self._move(event, Stage.ENDING)
        self.faults.clear()
        self.ask_pending = False
        self.under_review = None
        actions: list[Action[F]] = []
        for uid, mesh in self.meshes.items():
            if not mesh.stopping and mesh.within not in self.meshes:
                actions.append(StopMesh(uid))
            mesh.stopping = True
        return actions + self._clean_if_alone(event)

    def _clean_if_alone(self, event: str) -> list[Action[F]]:
        if self.stage is not Stage.ENDING or self.meshes:
            return []
        self._move(event, Stage.CLEANING)
        return [RunCleanup()]

    def _move(self, event: str, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], f"{event}: {self.stage} -> {stage}"
        self.stage = stage
        self.story.append((event, stage))
