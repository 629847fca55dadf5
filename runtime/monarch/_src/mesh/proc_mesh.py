"""ProcMesh: processes on hosts, one for each rank, on which actors are spawned.

Runs in: any process. The process that spawned a mesh is its owner: it gets the failures of the mesh
and may stop it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from monarch._src.actor.checked_names import name_text, reason_text
from monarch._src.actor.context import current, origin_now
from monarch._src.actor.endpoint import MAIN_THREAD, Actor, ActorClass, actor_class
from monarch._src.actor.future import Future
from monarch._src.actor.parts import parts
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.run.creators import creator_chain
from monarch._src.actor.runtime import Runtime, runtime
from monarch._src.actor.serialize import pack_value
from monarch._src.errors import MeshStoppedError, SupervisionError, death_error
from monarch._src.events import MeshSpawned, bus
from monarch._src.failures.endpoint_text import is_label
from monarch._src.failures.report import RankFailure, at_text
from monarch._src.mesh.actor_mesh import ActorMesh, Actors, OwnedActors, check_in_reach
from monarch._src.mesh.constructor_payload import constructor_payload, extra_payloads
from monarch._src.mesh.map.methods import MapsItems
from monarch._src.mesh.mocked_actors import mock_of
from monarch._src.mesh.namespace.methods import HasNamespace
from monarch._src.mesh.procs import Procs
from monarch._src.mesh.tensor_methods import HasTensors
from monarch._src.net.local.leader import FORKED
from monarch._src.net.local.waitable import RuntimeEnded
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import SpawnActor, StopActor, StopMesh, StopProc

if TYPE_CHECKING:
    from datetime import timedelta

    from monarch._src.mesh.device_mesh import DeviceMeshRef
    from monarch._src.mesh.host_mesh import HostMesh
    from monarch._src.mesh.map.driver import MapRun

A = TypeVar("A", bound=Actor)


class ProcMesh(MapsItems, HasNamespace, HasTensors):
    """A mesh of processes, on which actors are spawned. Made by `HostMesh.spawn_procs`."""

    def __init__(
        self, runtime: Runtime, procs: Procs, region: Region, host_mesh: HostMesh | None = None
    ) -> None:
        self._runtime = runtime
        self._procs = procs
        self._region = region
        self._host_mesh = host_mesh

    @property
    def name(self) -> str:
        """The name given at spawn; `procs` if none was given."""
        return self._procs.ref.name

    @property
    def host(self) -> str:
        """The name of its host, or of its hosts."""
        return self._procs.ref.host

    @property
    def uid(self) -> str:
        """The identifier of this mesh in logs and front ends, in hexadecimal."""
        return f"{self._procs.ref.uid:x}"

    @property
    def host_mesh(self) -> HostMesh | None:
        """The hosts it was spawned on; None for a reference received from another process."""
        return self._host_mesh

    @property
    def is_slice(self) -> bool:
        """Whether this mesh has only some of the ranks that were spawned together."""
        return len(self._region) != len(self._procs.region)

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._procs.stopped is not None

    @property
    def initialized(self) -> Future[bool]:
        """Done, with True, when every process is up and its bootstrap function has returned.

        Fails with the error of a process that could not start, or whose bootstrap function raised.

        Raises:
            ValueError: this is a reference: only the owner knows when its procs are up.
            MeshStoppedError: the mesh was stopped.
        """
        self._check_usable()
        future = self._procs.initialized
        if future is None:
            raise ValueError("only the owner of a mesh knows when its procs are up")
        return future

    @property
    def actor_names(self) -> tuple[str, ...]:
        """The names of the actor meshes that this process has spawned on this mesh."""
        live = [a.name for a in list(self._procs.actors.values()) if a.stopped is None]
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

    def _where(self) -> list[dict[str, int]]:
        extent = self._procs.ref.extent
        return [dict(extent.point_of_rank(rank)) for rank in self._region.ranks()]

    def _begin_map(self, method: str, *arguments: Any) -> MapRun | None:
        # Imported here: most programs do without.
        from monarch._src.mesh.map.arguments import checked, refused_function
        from monarch._src.mesh.map.driver import MapRun
        from monarch._src.mesh.map.state.schedule import LONGEST_S
        from monarch._src.mesh.map.worker import Map

        self._check_usable()
        run, procs = self._runtime, self._procs
        if run.node.is_fork:
            raise RuntimeEnded(FORKED)
        found = checked(method, *arguments)
        # A size that the caller has chosen is kept.
        longest_s = LONGEST_S if found.chunk_size is None else math.inf
        options = {"stops_at_error": found.on_error == "raise", "longest_s": longest_s}
        try:
            payload = pack_value((Map, (found.function,), options, *extra_payloads(self)), own=2)
        except Exception as error:
            refusal, cause = refused_function(method, found, error)
            raise refusal from cause
        if not found.items:
            return None
        dead = run.known.dead(procs.ref.uid)
        skip = {self._region.position(rank) for rank in dead if rank in self._region}
        if len(skip) == len(self._region):
            gone = [dead[rank] for rank in sorted(dead) if rank in self._region]
            raise self._refused("the map has not begun", gone, "spawn others")
        actors = self._spawn_on("map", actor_class(Map), payload, skip)
        map_run = MapRun(run, actors, found)
        try:
            map_run.begin()
        except BaseException:
            map_run.end(cancel=True)
            raise
        return map_run

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Choose which lines of these processes reach this program's streams, or notebook cells.

        By default every line does, at once. Returns when all processes use the new log level.

        Args:
            stream_to_client: whether lines are shown at all; `%monarch logs` has them in any case.
            aggregate_window_sec: seconds for which lines are gathered; equal lines of several ranks
                are then shown once. None: lines are shown as they come.
            level: the lowest level that `logging` emits in these processes.

        Raises:
            TypeError, ValueError: an argument that does not fit, or two that contradict each other;
                this process has not spawned the mesh, or is not a client.
            SupervisionError: a process of the mesh could not start.
        """
        # Imported here: it needs an event loop, which most programs do without.
        from monarch._src.actor.inspect.log_levels import set_log_level
        from monarch._src.mesh.log_rules import checked_rule, sieve_of

        rule = checked_rule(stream_to_client, aggregate_window_sec, level)
        run, ref = self._runtime, self._procs.ref
        if not self._procs.owned or run.proc_ref is not None:
            raise ValueError(
                f"the output of {self.name!r} goes to the client that spawned it; call "
                "logging_option there"
            )
        await self.initialized
        await run.agent.flush_output()  # lines written before this call follow the rule before it
        sieve_of(run).set(ref.uid, list(self._region.ranks()), rule)
        await set_log_level(run, ref, self._region, level)

    def init_process_group(
        self, backend: str | None = None, *, timeout: float | timedelta | None = None
    ) -> None:
        """Make torch's default process group of these ranks. Returns when every rank has joined.

        A rank is numbered by its place in this mesh or slice. If a rank dies, or leaves a call by
        an exception before it comes to a collective, the collectives of the others end at once,
        with a `monarch.spmd.CollectiveError` that names it. A group that is in good order is left
        as it is if it was made in the same way; else it is replaced. A call that a rank has left by
        an exception or by its death is awaited on the others first, for 10 seconds at most, so that
        it does not come to collectives of the new group. The group is destroyed when these procs
        stop. In async code, await `monarch.spmd.init_process_group_async(procs)`.

        Args:
            backend: as torch names it. None: `gloo`, and `nccl` beside it for tensors on GPUs where
                each rank has a GPU of its own.
            timeout: of collectives, in seconds or as a timedelta; 30 minutes if None.

        Raises:
            ModuleNotFoundError: a rank has no torch.
            ValueError: no such backend on a rank; a time-out that is not positive.
            TypeError: an argument of the wrong type.
            RuntimeError: a rank has a process group that its own code has made.
            SupervisionError: a rank has died.
        """
        self._check_usable()
        parts().init_process_group(self, backend, timeout)

    def device_mesh(self, backend: str | None = None) -> DeviceMeshRef:
        """Make a `torch.distributed.DeviceMesh` with the dims of this mesh, on each of its ranks.

        Pass the result to an endpoint, where it arrives as the DeviceMesh of that rank. Makes the
        default process group if there is none. For other dims, call it on a `split`, `flatten` or
        `rename` of the mesh. In async code, await `monarch.spmd.device_mesh_async(procs)`.

        Raises as `init_process_group` does.
        """
        self._check_usable()
        return parts().device_mesh(self, backend)

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
            raise self._refused(refusal, gone, "stop() these procs and spawn others")

    def _refused(self, refusal: str, gone: list[RankFailure], remedy: str) -> SupervisionError:
        if all(failure.kind == "out of reach" for failure in gone):
            # No slice, and no restart, would help, so this is no advice that can be replaced.
            refusal += ": they belong to a session that this process no longer holds"
            return SupervisionError(failures=gone, remedy=refusal)
        if len(gone) < len(self._region):
            remedy += ", or go on with a slice without what has failed"
        return SupervisionError(failures=gone, remedy=remedy, refusal=refusal)

    def stop(self, reason: str | None = None) -> Future[None]:
        """End its processes: they finish the messages they have, and actors clean up. Idempotent.

        The future is done when every pid is gone. Processes that exceed the time for clean-up are
        killed.

        Raises:
            ValueError: this is a slice, or a reference that another process owns.
            TypeError: the reason is not text.
            SupervisionError: this process no longer holds the session of the mesh.
        """
        procs = self._procs
        if not procs.owned:
            raise ValueError(f"{self.name!r} was spawned elsewhere; only its owner may stop it")
        if self.is_slice:
            raise ValueError(f"stop the whole mesh {self.name!r}, not a slice of it")
        reason = reason_text(reason, "stopped by client")
        check_in_reach(self._runtime.known.dead(procs.ref.uid))
        return self._stop(reason, procs.cleanup_s)

    def kill(self, reason: str | None = None) -> Future[None]:
        """End its processes at once, without clean-up of actors. Idempotent.

        May follow `stop`, when that takes too long. Raises as `stop` does.
        """
        procs = self._procs
        if not procs.owned:
            raise ValueError(f"{self.name!r} was spawned elsewhere; only its owner may kill it")
        if self.is_slice:
            raise ValueError(f"kill the whole mesh {self.name!r}, not a slice of it")
        return self._stop(reason_text(reason, "killed by client"), 0.0)

    def _stop(self, reason: str, grace: float) -> Future[None]:
        procs, run = self._procs, self._runtime
        uid = procs.ref.uid
        with procs.lock:
            if procs.stop_future is not None:
                if not grace and not procs.stop_future.done:
                    for site in procs.ref.places:
                        run.routes.tell_agent_at(site, StopMesh(procs.ref.uid, reason, grace))
                return procs.stop_future
            procs.stopped = reason
            future = procs.stop_future = run.terminations.stopping(uid)
        run.ownership.on_mesh_stopping(uid)
        for actors in list(procs.actors.values()):
            actors.stopped = actors.stopped or f"its procs were stopped ({reason})"
        dead = run.known.dead(uid)
        run.routes.post(procs.ref, procs.region, StopProc(reason, grace), skip=dead)
        for site in procs.ref.places:
            if not run.routes.tell_agent_at(site, StopMesh(uid, reason, grace)):
                run.terminations.on_site_emptied(uid, site)  # no agent, no procs
        forget(procs)
        if procs.kept and procs.ref.sites:
            on_kept_mesh_stopped()
        return future

    def __enter__(self) -> ProcMesh:
        return self

    def __exit__(self, *_: object) -> None:
        if self._procs.stopped is None:
            self.stop().get()

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


class OwnedProcs:
    """A mesh of procs, as the supervisor of its owner sees it."""

    def __init__(self, mesh: ProcMesh) -> None:
        self.mesh = mesh
        self.name = mesh.name

    def record(self, failures: Sequence[RankFailure]) -> None:
        """Some of its processes have failed, so `initialized` fails."""
        future = self.mesh._procs.initialized  # pyright: ignore[reportPrivateUsage]
        if future is not None:
            future.fail(death_error(failures))

    def describe_as_actor(self, failure: RankFailure, rank: int) -> RankFailure:
        """The failure to report for a failure of one of its processes: the same."""
        return failure

    def runs_on(self, procs: int, rank: int) -> bool:
        """False: a mesh of procs depends on hosts, not on procs."""
        return False

    def end(self, reason: str, grace_s: float) -> Future[None]:
        """Stop it, since its owner ends."""
        procs = self.mesh._procs  # pyright: ignore[reportPrivateUsage]
        return self.mesh._stop(reason, min(grace_s, procs.cleanup_s))  # pyright: ignore[reportPrivateUsage]


def _reference(ref: ProcsRef, base: Region, region: Region) -> ProcMesh:
    return ProcMesh(runtime(), Procs(ref, base, owned=False), region)


# --- the meshes that this process owns ------------------------------------------------------------

_owned: dict[int, ProcMesh] = {}


def remember(mesh: ProcMesh) -> None:
    """Record a mesh that was just requested or inherited."""
    _owned[int(mesh.uid, 16)] = mesh
    bus.emit(MeshSpawned(mesh.uid, mesh.name))


# Called when a mesh on workers that was kept is being stopped; set by `session.keep`.
on_kept_mesh_stopped: Callable[[], None] = lambda: None  # noqa: E731


def forget(procs: Procs) -> None:
    """Remove a mesh that is being stopped from the meshes of this process."""
    _owned.pop(procs.ref.uid, None)
    if procs.on_forgotten is not None:
        procs.on_forgotten()


def record_actors_of(mesh: ProcMesh) -> None:
    """Have the host agent record the actors of a mesh, those of now and those to come."""
    procs = mesh._procs  # pyright: ignore[reportPrivateUsage]
    procs.kept = True
    for actors in list(procs.actors.values()):
        if actors.stopped is None and not actors.recorded:
            actors.record(mesh._runtime)  # pyright: ignore[reportPrivateUsage]


def owned_meshes() -> list[ProcMesh]:
    """The proc meshes this process has spawned and not stopped, oldest first."""
    return list(_owned.values())


def end_meshes_of(run: Runtime, reason: str | None) -> None:
    """Mark the meshes of a session that has ended as stopped; None: they were lost before."""
    for mesh in owned_meshes():
        procs = mesh._procs  # pyright: ignore[reportPrivateUsage]
        if mesh._runtime is run:  # pyright: ignore[reportPrivateUsage]
            procs.stopped = procs.stopped or reason
            for actors in list(procs.actors.values()):
                actors.stopped = actors.stopped or reason
            forget(procs)


def pending_proc_count() -> int:
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
    """A proc of this process has connected. On the receiving thread."""
    found = _owned.get(mesh)
    if found is None:
        return
    procs = found._procs  # pyright: ignore[reportPrivateUsage]
    procs.ready.add(rank)
    if procs.bootstrapped is None:
        _settle_if_all(procs, procs.ready)


def proc_bootstrapped(mesh: int, rank: int, failure: RankFailure | None) -> None:
    """The bootstrap function of a proc of this process has ended. On the receiving thread."""
    found = _owned.get(mesh)
    if found is None:
        return
    procs = found._procs  # pyright: ignore[reportPrivateUsage]
    if failure is not None:
        procs.failures[rank] = failure
        if procs.initialized is not None:
            procs.initialized.fail(death_error([failure]))
    elif procs.bootstrapped is not None:
        procs.bootstrapped.add(rank)
        _settle_if_all(procs, procs.bootstrapped)


def proc_restarting(mesh: int, rank: int) -> None:
    """A proc is being restarted. The failures on it do not apply to the next incarnation."""
    found = _owned.get(mesh)
    if found is None:
        return
    procs = found._procs  # pyright: ignore[reportPrivateUsage]
    procs.failures.pop(rank, None)
    for actors in list(procs.actors.values()):
        actors.failures.pop(rank, None)


def _settle_if_all(procs: Procs, ranks: set[int]) -> None:
    if procs.initialized is not None and len(ranks) == len(procs.region):
        procs.initialized.settle(lambda: True)
