"""ProcMesh: processes on hosts, one a rank, on which actors are spawned.

Runs in: any process. Whoever spawned it owns it: is told of its failures and may stop it.
"""

from __future__ import annotations

import inspect
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from monarch._src.actor.context import current
from monarch._src.actor.creators import made_by
from monarch._src.actor.endpoint import Actor, actor_class
from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.remote import ship
from monarch._src.actor.runtime import Runtime, runtime
from monarch._src.actor.texts import name_text, reason_text
from monarch._src.actor.unpicklable import unpicklable
from monarch._src.core.ids import AGENT
from monarch._src.errors import MeshStoppedError, RankFailure, SupervisionError, at_text
from monarch._src.events import MeshSpawned, bus
from monarch._src.mesh.actor_mesh import ActorMesh, Actors
from monarch._src.shape import MeshTrait, Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import SpawnActor, SpawnProcs, StopMesh, StopProc

if TYPE_CHECKING:
    from monarch._src.mesh.host_mesh import HostMesh

A = TypeVar("A", bound=Actor)


class Procs:
    """What all slices of one proc mesh share."""

    def __init__(
        self, ref: ProcsRef, region: Region, *, owned: bool, cleanup_s: float = 0.0
    ) -> None:
        self.ref = ref
        self.cleanup_s = cleanup_s  # what stop() gives them
        self.region = region
        self.owned = owned
        self.spawned_at = time.monotonic()
        self.stopped: str | None = None
        self.stop_future: Future[None] | None = None
        self.actors: dict[int, Actors] = {}
        self.ready: set[int] = set()
        # If there is a bootstrap function: the ranks where it has returned, and where it raised.
        self.bootstrapped: set[int] | None = None
        self.failures: dict[int, RankFailure] = {}
        self.initialized: Future[None] | None = None
        self.lock = threading.Lock()


class ProcMesh(MeshTrait):
    """A mesh of processes."""

    def __init__(
        self, runtime: Runtime, procs: Procs, region: Region, host_mesh: HostMesh | None = None
    ) -> None:
        self._runtime = runtime
        self._procs = procs
        self._region = region
        self._host_mesh = host_mesh

    @property
    def name(self) -> str:
        """The name given at spawn, `procs` if none was."""
        return self._procs.ref.name

    @property
    def uid(self) -> str:
        """What names this mesh in logs and front ends, in hexadecimal."""
        return f"{self._procs.ref.uid:x}"

    @property
    def host_mesh(self) -> HostMesh | None:
        """The hosts it was spawned on; None for a reference that came from elsewhere."""
        return self._host_mesh

    @property
    def is_slice(self) -> bool:
        """Whether this stands for some of the ranks that were spawned together, and not for all."""
        return len(self._region) != len(self._procs.region)

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._procs.stopped is not None

    @property
    def initialized(self) -> Future[None]:
        """Done when every process is up and its bootstrap function has returned.

        Fails with the error of one that could not start, or whose bootstrap function raised.
        """
        self._check_usable()
        future = self._procs.initialized
        if future is None:
            raise ValueError("only the owner of a mesh is told when its procs are up")
        return future

    @property
    def actor_names(self) -> tuple[str, ...]:
        """The names of the actor meshes that this process has spawned on it."""
        live = [a.name for a in self._procs.actors.values() if a.stopped is None]
        return tuple(dict.fromkeys(live))

    def _new_with_region(self, region: Region) -> ProcMesh:
        return ProcMesh(self._runtime, self._procs, region, self._host_mesh)

    def _check_usable(self) -> None:
        stopped = self._procs.stopped
        if stopped is not None:
            raise MeshStoppedError(
                f"the proc mesh {self.name!r} has been stopped: {stopped}; spawn a new one"
            )

    def spawn(self, name: str, Class: type[A], *args: Any, **kwargs: Any) -> A:
        """Make one actor of `Class` on every proc; returns their mesh at once.

        A constructor that raises is told on first use.

        Raises:
            TypeError: the arguments do not fit `__init__`, or one cannot be pickled; the name is no
                text.
            ValueError: `Class` breaks a rule of actor classes.
            SupervisionError: a proc of this mesh, or an actor on it that is not stopped, has died,
                or the bootstrap function of a proc has raised.
            RuntimeError: called by the bootstrap function of a proc of this mesh.
        """
        self._check_usable()
        cls = actor_class(Class)
        name_text("an actor mesh", name)
        payload = constructor_payload(Class, args, kwargs)
        procs, run = self._procs, self._runtime
        if run.bootstrapping and run.proc_ref is not None and run.proc_ref.uid == procs.ref.uid:
            raise RuntimeError(
                f"no actor of {self.name!r} begins before the bootstrap function, which spawns "
                f"{name!r} here, has returned; spawn it from the client"
            )
        dead = {**run.known.dead(procs.ref.uid), **procs.failures}
        failed = [dead[rank] for rank in sorted(dead) if rank in self._region]
        # One that never lived, or that its owner has stopped, is nobody's trouble any more: in a
        # notebook the next spawn is the corrected class.
        failed += [
            failure
            for actors in procs.actors.values()
            if actors.stopped is None
            for failure in actors.failures.values()
            if failure.kind != "constructor"
        ]
        if failed:
            raise SupervisionError(failures=failed)
        uid = run.uids()
        context = current.get()
        run.ends.own(uid, 0 if context is None else context.actor_instance.actor_id.uid)
        actors = Actors(uid, name, cls, procs.ref, self._region, owned=True)
        procs.actors[uid] = actors
        extent = self._region.extent
        ref = procs.ref
        spec = SpawnActor(
            uid, name, cls.name, ref.uid, ref.name, 0, extent.labels, extent.sizes, run.name,
            made_by=[] if context is None else made_by(context.actor_instance),
        )  # fmt: skip
        run.routes.post(ref, self._region, spec, payload)
        return cast(A, ActorMesh(run, actors, self._region))

    def stop(self, reason: str | None = None) -> Future[None]:
        """End its processes: what they have is finished, actors clean up, every pid is gone.

        Idempotent. What outlasts the time for clean-up is killed.

        Raises:
            ValueError: this is a slice, or a reference that somebody else owns.
            TypeError: a reason that is no text.
        """
        procs, run = self._procs, self._runtime
        if not procs.owned:
            raise ValueError(f"{self.name!r} belongs to who spawned it; only the owner may stop it")
        if self.is_slice:
            raise ValueError(f"stop the whole mesh {self.name!r}, not a slice of it")
        reason = reason_text(reason, "stopped by client")
        with procs.lock:
            if procs.stop_future is not None:
                return procs.stop_future
            procs.stopped = reason
            future = procs.stop_future = run.ends.stopping(procs.ref.uid)
        for actors in procs.actors.values():
            actors.stopped = actors.stopped or f"its procs were stopped ({reason})"
        grace = procs.cleanup_s
        dead = run.known.dead(procs.ref.uid)
        run.routes.post(procs.ref, procs.region, StopProc(reason, grace), skip=dead)
        if not run.node.send(AGENT, StopMesh(procs.ref.uid, reason, grace)):
            future.settle(lambda: None)  # no agent, no procs
        forget(procs)
        return future

    async def __aenter__(self) -> ProcMesh:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._procs.stopped is None:
            await self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reference, (self._procs.ref, self._procs.region, self._region)

    def __repr__(self) -> str:
        at = at_text(self._region.sizes)
        state = ", stopped" if self.stopped else ""
        return f"<ProcMesh {self.name!r}{at} on {self._procs.ref.host}{state}>"


def _reference(ref: ProcsRef, base: Region, region: Region) -> ProcMesh:
    return ProcMesh(runtime(), Procs(ref, base, owned=False), region)


def constructor_payload(cls: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Payload:
    """A class and what its constructor is given; TypeError if it could not begin with that."""
    try:
        signature = inspect.signature(cls)
    except ValueError:
        signature = None  # some extension types have none; the constructor itself will tell
    else:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}{signature}: {error}") from None
    try:
        return ship((cls, args, kwargs), own=2)
    except Exception as error:
        raise unpicklable(cls.__name__, signature, args, kwargs, error) from error


# --- the meshes that this process owns ------------------------------------------------------------

_owned: dict[int, ProcMesh] = {}


def remember(mesh: ProcMesh, spec: SpawnProcs) -> None:
    """Note a mesh that was just asked for."""
    _owned[spec.mesh] = mesh
    bus.emit(MeshSpawned(mesh.uid, mesh.name))


def forget(procs: Procs) -> None:
    """A mesh is being stopped."""
    _owned.pop(procs.ref.uid, None)


def owned_meshes() -> list[ProcMesh]:
    """The proc meshes this process has spawned and not stopped, oldest first."""
    return list(_owned.values())


def end_meshes_of(run: Runtime, reason: str | None) -> None:
    """The session of that runtime has ended: its meshes are stopped, or (None) were lost before."""
    for mesh in owned_meshes():
        procs = mesh._procs  # pyright: ignore[reportPrivateUsage]
        if mesh._runtime is run:  # pyright: ignore[reportPrivateUsage]
            procs.stopped = procs.stopped or reason
            for actors in procs.actors.values():
                actors.stopped = actors.stopped or reason
            forget(procs)


def procs_to_come() -> int:
    """How many procs of these meshes are neither up nor known to be dead."""
    found = 0
    for mesh in owned_meshes():
        procs = mesh._procs  # pyright: ignore[reportPrivateUsage]
        run = mesh._runtime  # pyright: ignore[reportPrivateUsage]
        if len(procs.ready) < len(procs.region):
            gone = run.known.dead(procs.ref.uid)
            found += sum(r not in procs.ready and r not in gone for r in procs.region.ranks())
    return found


def proc_ready(mesh: int, rank: int) -> None:
    """A proc of ours has said hello. On the thread that receives."""
    found = _owned.get(mesh)
    if found is None:
        return
    procs = found._procs  # pyright: ignore[reportPrivateUsage]
    procs.ready.add(rank)
    if procs.bootstrapped is None:
        _settle_if_all(procs, procs.ready)


def proc_bootstrapped(mesh: int, rank: int, failure: RankFailure | None) -> None:
    """The bootstrap function of a proc of ours has ended. On the thread that receives."""
    found = _owned.get(mesh)
    if found is None:
        return
    procs = found._procs  # pyright: ignore[reportPrivateUsage]
    if failure is not None:
        procs.failures[rank] = failure
        if procs.initialized is not None:
            procs.initialized.fail(SupervisionError(failures=[failure]))
    elif procs.bootstrapped is not None:
        procs.bootstrapped.add(rank)
        _settle_if_all(procs, procs.bootstrapped)


def _settle_if_all(procs: Procs, ranks: set[int]) -> None:
    if procs.initialized is not None and len(ranks) == len(procs.region):
        procs.initialized.settle(lambda: None)


def note_failures(
    mesh: int, actor: int | None, failures: list[RankFailure]
) -> tuple[ProcMesh | None, Actors | None]:
    """Enter failures into the mesh that they are of; which that is. On the thread that receives."""
    for found in _owned.values():
        procs = found._procs  # pyright: ignore[reportPrivateUsage]
        if actor is None and procs.ref.uid == mesh:
            if procs.initialized is not None:
                procs.initialized.fail(SupervisionError(failures=failures))
            return found, None
        actors = procs.actors.get(actor) if actor is not None else None
        if actors is not None:
            for failure in failures:
                actors.failures.setdefault(actors.region.global_rank(failure.rank), failure)
            return found, actors
    return None, None
