"""`spawn` of a ProcMesh.

Runs in: any process, on the calling thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any, TypeVar, cast

from monarch._src.actor.checked_names import name_text
from monarch._src.actor.context import current, origin_now
from monarch._src.actor.endpoint import MAIN_THREAD, Actor, ActorClass, actor_class
from monarch._src.actor.run.spawn_context import creator_chain
from monarch._src.actor.runtime import Runtime
from monarch._src.errors import SupervisionError
from monarch._src.failures.endpoint_text import is_label
from monarch._src.failures.report import RankFailure, for_later_call
from monarch._src.mesh.actor_mesh import ActorMesh, Actors, OwnedActors
from monarch._src.mesh.constructor_payload import constructor_payload, extra_payloads
from monarch._src.mesh.mock_registry import mock_of
from monarch._src.mesh.named_imports import note_imports_of
from monarch._src.mesh.procs import Procs
from monarch._src.net.local.leader import FORKED
from monarch._src.net.local.waitable import RuntimeEnded
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import SpawnActor, StopActor

A = TypeVar("A", bound=Actor)


class SpawnsActors:
    """Mixed into ProcMesh: actors on its procs, unless procs have failed."""

    _runtime: Runtime
    _procs: Procs
    _region: Region

    @abstractmethod
    def _check_usable(self) -> None:
        """Raise MeshStoppedError if the mesh was stopped."""

    def spawn(self, name: str, Class: type[A], *args: Any, **kwargs: Any) -> A:
        """Make one actor of `Class` on every proc. Returns their mesh at once.

        An error in a constructor is raised by the first use of the mesh.

        Raises:
            TypeError: the arguments do not fit `__init__`, or one cannot be pickled; the name is
                not text.
            ValueError: `Class` breaks a rule of actor classes.
            SupervisionError: a proc of this mesh has died, or its bootstrap function has raised.
                Slices without the failed ranks still accept actors.
            RuntimeError: the caller is an actor that is ending.
        """
        self._check_usable()
        Class = mock_of(Class)
        cls = actor_class(Class)
        name_text("an actor mesh", name)
        payload = constructor_payload(Class, args, kwargs, extra_payloads(self))
        if self._runtime.node.is_fork:
            raise RuntimeEnded(FORKED)
        self._check_sound(name, cls)
        note_imports_of(cls.cls)
        return cast(A, self._spawn_on(name, cls, payload))

    def _spawn_on(
        self, name: str, cls: ActorClass, payload: Payload, skip: Collection[int] = ()
    ) -> ActorMesh:
        """Make the actors, except at the positions in `skip`, whose ranks are known to be dead."""
        procs, run = self._procs, self._runtime
        uid = run.uids()
        context = current.get()
        actors = Actors(uid, name, cls, procs.ref, self._region, owned=True)
        mesh = ActorMesh(run, actors, self._region)
        run.ownership.own(uid, OwnedActors(mesh), procs.ref.uid)
        procs.actors[uid], actors.listed_in = actors, procs.actors
        if procs.kept:  # first, so that the agent knows them if this client dies in between
            actors.record(run)
        extent = self._region.extent
        ref = procs.ref
        spec = SpawnActor(
            uid, name, cls.name, ref.uid, ref.name, 0, extent.labels, extent.sizes, run.name,
            made_by=[] if context is None else creator_chain(context.actor_instance),
            origin=origin_now(), main_thread=getattr(cls.cls, MAIN_THREAD, "first"),
        )  # fmt: skip
        run.routes.post(ref, self._region, spec, payload, skip=skip)
        if actors.stopped is not None:  # the owner ended in the meantime, and stopped the mesh
            run.routes.post(ref, self._region, StopActor(uid, 0, 0, actors.stopped), skip=skip)
        return mesh

    def _failures(self) -> dict[int, RankFailure]:
        """The failures of procs of this mesh or slice, by their ranks in the spawned mesh."""
        procs = self._procs
        dead = {**self._runtime.known.dead(procs.ref.uid), **procs.failures}
        return {rank: failure for rank, failure in dead.items() if rank in self._region}

    def _check_sound(self, name: str, cls: ActorClass) -> None:
        """Raise SupervisionError if a proc has failed. A failed actor does not affect others."""
        dead = self._failures()
        gone = [dead[rank] for rank in sorted(dead)]
        if gone:
            label = is_label(cls.name)
            refusal = f"{cls.name} has not begun" if label else f"{name!r} is not spawned"
            again = self._procs.owned and not self._procs.kept
            remedy = "stop() these procs and spawn others"
            raise self._refused(refusal, gone, f"restart() them, or {remedy}" if again else remedy)

    def _refused(self, refusal: str, gone: list[RankFailure], remedy: str) -> SupervisionError:
        if all(failure.kind == "out of reach" for failure in gone):
            # No slice, and no restart, would help, so this is no advice that can be replaced.
            refusal += ": they belong to a session that this process no longer holds"
            return SupervisionError(failures=gone, remedy=refusal)
        gone = list(map(for_later_call, gone))
        if len(gone) < len(self._region):
            remedy += ", or go on with a slice without what has failed"
        return SupervisionError(failures=gone, remedy=remedy, refusal=refusal)
