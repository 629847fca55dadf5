"""The lifecycle of an owner of meshes. No I/O, no clock, no locks.

An *owner* is an actor, or a process, which owns the meshes that are made outside of actors. The
actors of an owned mesh run in other processes and are owners themselves, so the tree of owners is
spread over processes and joined by messages: downwards, to stop a mesh; upwards, that ranks of a
mesh have failed or that nothing of it is left. Events are methods; each returns its actions, in
order, and the driver (`actor.supervise.ownership`) carries them out.

    LIVING --stop requested, or failed--> ENDING --meshes gone, or overdue--> CLEANING --> GONE

A living owner handles the failures of its meshes one mesh at a time; failures that arrive meanwhile
are collected by mesh. An unhandled failure fails the owner, with the failures of its meshes as
causes. An ending owner stops its meshes, waits until they are gone or their time is up, and then
cleans up. It handles no failure that arrives meanwhile.
"""

from __future__ import annotations

import enum
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

import msgspec

F = TypeVar("F")


class Stage(enum.Enum):
    """The stages of an owner."""

    LIVING = "living"  # it handles messages, and may make more meshes
    ENDING = "ending"  # its meshes are being stopped
    CLEANING = "cleaning"  # its meshes are gone or overdue, and its clean-up runs
    GONE = "gone"


# The stages that may follow each stage.
TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.LIVING: frozenset({Stage.ENDING}),
    Stage.ENDING: frozenset({Stage.CLEANING}),
    Stage.CLEANING: frozenset({Stage.GONE}),
    Stage.GONE: frozenset(),
}


class AskSupervisor(msgspec.Struct, frozen=True):
    """A failure is to be handled: call `next_failure` at the next safe point."""


class StopMesh(msgspec.Struct, frozen=True):
    """Stop that mesh; then call `on_mesh_gone`."""

    uid: int


class RunCleanup(msgspec.Struct, frozen=True):
    """Run the clean-up now; then call `on_cleaned_up`."""


class ReportFailure(msgspec.Struct, Generic[F], frozen=True):
    """Report the failure to the owner's own owner."""

    failure: F


class Finalize(msgspec.Struct, frozen=True):
    """The owner has ended: answer the callers that wait for that."""


Action: TypeAlias = "AskSupervisor | StopMesh | RunCleanup | ReportFailure[F] | Finalize"


class _Mesh(msgspec.Struct):
    """An owned mesh. `within`: the owned proc mesh that it runs on, or 0."""

    within: int
    stopping: bool = False


class OwnerLifecycle(msgspec.Struct, Generic[F]):
    """One owner. F is the type of a failure, which is opaque here."""

    stage: Stage = Stage.LIVING
    meshes: dict[int, _Mesh] = {}
    # The failures to handle, by mesh, in the order of their first arrivals. All and only failures
    # of meshes that are not stopping, while LIVING.
    faults: dict[int, list[F]] = {}
    ask_pending: bool = False  # an AskSupervisor for `faults` is under way
    under_review: tuple[int, list[F]] | None = None  # the failures being handled now
    to_stop: bool = False  # as soon as no failure is left to handle
    failure: F | None = None  # why it failed; None: it has not, or was stopped
    reported: bool = False  # its own owner knows of `failure`
    overdue: bool = False  # it has not waited for the last of its meshes
    story: list[tuple[str, Stage]] = []

    # --- its meshes -------------------------------------------------------------------------

    def own(self, uid: int, within: int = 0) -> bool:
        """Add a mesh. False if the owner is ending, and the mesh must not be made."""
        if self.stage is not Stage.LIVING:
            return False
        self.meshes[uid] = _Mesh(within if within in self.meshes else 0)
        return True

    def on_mesh_stopping(self, uid: int) -> list[Action[F]]:
        """The owner stops a mesh; that also settles pending failures of the mesh."""
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
        """Ranks of a mesh have failed. Ignored if the mesh is stopping."""
        mesh = self.meshes.get(uid)
        if self.stage is Stage.LIVING and mesh is not None and not mesh.stopping:
            self.faults.setdefault(uid, []).extend(faults)
        return self._next()

    # --- failures of its meshes -------------------------------------------------------------

    def next_failure(self) -> tuple[int, list[F]] | None:
        """At a safe point: the failures of one mesh to handle next, if any."""
        if self.under_review is not None or not self.faults:
            return None
        uid = next(iter(self.faults))
        self.under_review = uid, self.faults.pop(uid)
        self.ask_pending = False
        return self.under_review

    def on_verdict(self, failure: F | None) -> list[Action[F]]:
        """The failures under review are handled (None), or the owner fails with `failure`."""
        self.under_review = None
        return self._next() if failure is None else self.on_failed(failure)

    def unhandled(self) -> list[F]:
        """The unhandled failures: the causes of the owner's failure, if it failed now."""
        now = [] if self.under_review is None else self.under_review[1]
        return [*now, *(fault for faults in self.faults.values() for fault in faults)]

    # --- its end ------------------------------------------------------------------------------

    def on_stop_requested(self) -> list[Action[F]]:
        """The owner is to end, after its pending failures are handled."""
        if self.stage is Stage.LIVING:
            self.to_stop = True
        return self._next()

    def on_failed(self, failure: F) -> list[Action[F]]:
        """The owner has failed. The first failure counts, even one while it stops."""
        if self.stage is Stage.LIVING:
            self.failure = failure
            return self._end("failed")
        if self.stage is not Stage.GONE and self.failure is None:
            self.failure = failure
        return []

    def on_grace_expired(self) -> list[Action[F]]:
        """The time for the owner's meshes is up."""
        if self.stage is not Stage.ENDING:
            return []
        self.overdue = True
        self._move("overdue", Stage.CLEANING)
        return [RunCleanup()]

    def on_cleaned_up(self, failure: F | None = None) -> list[Action[F]]:
        """The clean-up has ended. `failure`: its exception; an earlier failure takes precedence."""
        if self.stage is not Stage.CLEANING:
            return []
        self.failure = failure if self.failure is None else self.failure
        self._move("cleaned up", Stage.GONE)
        return [*self.on_report_due(), Finalize()]

    def on_report_due(self) -> list[Action[F]]:
        """Report the failure now, even if the clean-up has not ended."""
        if self.failure is None or self.reported:
            return []
        self.reported = True
        return [ReportFailure(self.failure)]

    # --- invariants ----------------------------------------------------------------------------

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        living = self.stage is Stage.LIVING
        stages = [Stage.LIVING, *(stage for _, stage in self.story)]
        for before, after in pairwise(stages):
            assert after in TRANSITIONS[before], f"{before} -> {after}"
        assert stages[-1] is self.stage
        assert not self.ask_pending or (self.faults and self.under_review is None), (
            "asked without a failure"
        )
        assert self.ask_pending or not self.faults or self.under_review, (
            "a failure that is not handled"
        )
        for uid, faults in self.faults.items():
            assert faults, "an empty failure"
            assert living, "a failure to handle after the end"
            assert not self.meshes[uid].stopping, "a failure of a stopping mesh"
        assert not (living and self.to_stop) or self.faults or self.under_review, (
            "a stop request without effect"
        )
        for uid, mesh in self.meshes.items():
            assert living or mesh.stopping, f"mesh {uid} outlives its owner"
            above = self.meshes.get(mesh.within)
            assert above is None or mesh.stopping or not above.stopping
        if self.stage in (Stage.CLEANING, Stage.GONE):
            assert not self.meshes or self.overdue, "it cleaned up before its meshes"
        assert not self.reported or self.failure is not None
        assert self.stage is not Stage.GONE or self.reported == (self.failure is not None)

    # --- inside -------------------------------------------------------------------------------

    def _with(self, uid: int) -> list[int]:
        return [uid, *(other for other, mesh in self.meshes.items() if mesh.within == uid)]

    def _next(self) -> list[Action[F]]:
        """The action for pending failures, or for the end that waits for them."""
        if not self.faults:
            self.ask_pending = False
        if self.stage is not Stage.LIVING or self.under_review is not None or self.ask_pending:
            return []
        if self.faults:
            self.ask_pending = True
            return [AskSupervisor()]
        return self._end("stop requested") if self.to_stop else []

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
