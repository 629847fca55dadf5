"""`spawn` of a ProcMesh: the message to the ranks, and the class and its arguments as a pickle.

Runs in: any process, on the calling thread.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

from monarch._src.actor.call.pickling_errors import unpicklable
from monarch._src.actor.checked_names import name_text
from monarch._src.actor.context import current, origin_now
from monarch._src.actor.endpoint import MAIN_THREAD, Actor, ActorClass, actor_class
from monarch._src.actor.run.spawn_context import creator_chain, received_extras
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.serialize import pack_value
from monarch._src.errors import SupervisionError
from monarch._src.failures.endpoint_text import is_label
from monarch._src.failures.report import RankFailure, for_later_call
from monarch._src.mesh.actor_mesh import ActorMesh, Actors, OwnedActors
from monarch._src.mesh.client_imports import note_imports_of
from monarch._src.mesh.mock_registry import mock_of, mock_payloads
from monarch._src.mesh.procs import Procs
from monarch._src.net.local.leader import FORKED
from monarch._src.net.local.waitable import RuntimeEnded
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import SpawnActor, StopActor

_extra_source: Callable[[Any], object] | None = None
A = TypeVar("A", bound=Actor)


def accompany_actors(source: Callable[[Any], object] | None) -> None:
    """Send an extra value along with every actor that this program spawns on processes.

    `source` is called at each spawn with the ProcMesh that is spawned on. The value it returns, if
    not None, is unpickled in each process, on the actor's own thread, before the constructor runs;
    it is useful if unpickling has an effect there. The same holds for bootstrap functions. A proc
    passes the values it has received on to all that it spawns. None: no extra values are sent.
    """
    global _extra_source
    _extra_source = source


def extra_payloads(mesh: Any) -> list[bytes]:
    """The extra values for a spawn, each pickled by itself: actors can begin without them."""
    if _extra_source is None:
        return [*received_extras(), *mock_payloads()]
    found = _extra_source(mesh)
    own = [] if found is None else [bytes(pack_value(found).body)]
    return [*own, *mock_payloads()]


def constructor_payload(
    cls: type[Actor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    along: Sequence[bytes] = (),
) -> Payload:
    """A class and the arguments of its constructor, pickled; TypeError if the arguments do not fit.

    `along`: pickled values that are unpickled before the constructor runs.
    """
    try:
        signature = inspect.signature(cls)
    except ValueError:
        signature = None  # some extension types have none; the constructor checks its arguments
    else:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}{signature}: {error}") from None
    try:
        return pack_value((cls, args, kwargs, *along), own=2, defines=True)
    except Exception as error:
        told, cause = unpicklable(cls.__name__, signature, args, kwargs, error, cls)
        raise told from cause


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
