"""ActorMesh: actors of one class, one for each rank, called together.

Runs in: any process. The process that spawned it is its owner and gets its failures; elsewhere it
is a reference, which can be called and sliced but not stopped.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from types import GenericAlias
from typing import Any, cast

from monarch._src.actor.call.call import Endpoint, send_call
from monarch._src.actor.call.responses import OneCall
from monarch._src.actor.call.send import PlainMethod
from monarch._src.actor.checked_names import check_may_end, reason_text
from monarch._src.actor.endpoint import Actor, ActorClass, actor_class, reserve
from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime, runtime
from monarch._src.actor.serialize import pack_value
from monarch._src.actor.state.calls import PendingCall
from monarch._src.config import settings
from monarch._src.errors import MeshStoppedError, SupervisionError
from monarch._src.failures.endpoint_text import is_label
from monarch._src.failures.report import RankFailure, at_text, for_mesh, points_text, shown_point
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.shape import IndexedMesh, Region
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import OK, ForgetActors, KeptActors, StopActor

log = logging.getLogger("monarch.actor")
_NO_FAILURES: dict[int, RankFailure] = {}
_NO_ARGUMENTS = pack_value(((), cast("dict[str, Any]", {})))


class Actors:
    """The state that all slices of one actor mesh share."""

    def __init__(
        self, uid: int, name: str, cls: ActorClass, procs: ProcsRef, region: Region, *, owned: bool
    ) -> None:
        self.uid = uid
        self.name = name
        self.class_name = cls.name
        self.cls = cls
        self.procs = procs
        self.region = region  # as spawned; positions in it are the actors' own ranks
        self.owned = owned
        self.stopped: str | None = None
        self.failures: dict[int, RankFailure] = {}  # by rank in the proc mesh
        # The `Procs.actors` that these actors are listed in, if this process spawned them there.
        self.listed_in: dict[int, Actors] | None = None
        self.recorded = False  # whether the agent has the record that another client needs

    @property
    def text(self) -> str:
        """`'trainers' (Trainer)`; of actors of the runtime, their label."""
        label = is_label(self.class_name)
        return self.class_name if label else f"{self.name!r} ({self.class_name})"

    def record(self, run: Runtime) -> None:
        """Have the host agent record these actors, since their procs outlive this client."""
        self.recorded = True
        view = self.region.ndslice
        message = KeptActors(
            self.uid, self.name, self.class_name, self.procs.uid, list(self.region.labels),
            (view.offset, tuple(view.sizes), tuple(view.strides)), list(self.failures.values()),
        )  # fmt: skip
        run.node.send(AGENT, message, pack_value(self.cls.cls))


class CallTarget:
    """The actors that a call to an actor mesh, or to a slice of it, goes to.

    A class apart from the mesh, because endpoints may have any name that meshes in general don't.
    """

    __slots__ = ("_actors", "_runtime", "region")

    def __init__(self, runtime: Runtime, actors: Actors, region: Region) -> None:
        """Args:
        region: the target's ranks of the proc mesh.
        """
        self._runtime = runtime
        self._actors = actors
        self.region = region

    @property
    def procs(self) -> ProcsRef:
        """A reference to the proc mesh that the actors live on."""
        return self._actors.procs

    @property
    def uid(self) -> int:
        """The number that identifies the mesh."""
        return self._actors.uid

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self._actors.name

    @property
    def class_name(self) -> str:
        """The name of the actor class."""
        return self._actors.class_name

    @property
    def actor_mesh(self) -> ActorMesh:
        """The same actors as a mesh."""
        return ActorMesh(self._runtime, self._actors, self.region)

    def check_usable(self) -> None:
        """Raise MeshStoppedError if the mesh was stopped."""
        stopped = self._actors.stopped
        if stopped is not None:
            raise MeshStoppedError(
                f"the actor mesh {self._actors.text} has been stopped: {stopped}; spawn it again"
            )

    def failures_in(self, region: Region) -> Mapping[int, RankFailure]:
        """The known failures of actors in that region, by position in it."""
        failures, dead = self._actors.failures, self._runtime.known.dead(self.procs.uid)
        if self.procs.restarts == "raise":
            dead = {**dead, **self._runtime.known.down(self.procs.uid)}
        if not failures and not dead:
            return _NO_FAILURES
        found = {**dead, **failures}
        return {region.position(rank): found[rank] for rank in sorted(found) if rank in region}

    def describe_as_actor(self, failure: RankFailure, rank: int) -> RankFailure:
        """A failure of a proc, reworded as the failure of the actor that lived on it."""
        if failure.actor_class or rank not in self._actors.region:
            return failure
        position = self._actors.region.position(rank)
        point = dict(self._actors.region.extent.point_of_rank(position))
        proc = dict(self.procs.extent.point_of_rank(rank))
        return for_mesh(failure, self.procs.name, rank, shown_point(proc, point))


DESCRIBING = ("class_name", "name", "procs", "region", "uid")
"""Attributes of `CallTarget` that a mesh has too, unless an endpoint or method has that name."""


class ActorMesh(IndexedMesh):
    """A mesh of actors. Its endpoints are attributes; see `Endpoint` for how to call them.

    Besides the endpoints it has the methods of every mesh, `initialized` and `stop`. The attributes
    `name`, `class_name`, `procs` and `uid` describe it, except where an endpoint has that name.

    `ActorMesh[Trainer]` is for annotations; at run time it is `ActorMesh`.
    """

    def __class_getitem__(cls, item: Any, /) -> GenericAlias:
        return GenericAlias(cls, item)

    def __init__(self, runtime: Runtime, actors: Actors, region: Region) -> None:
        self._runtime = runtime
        self._actors = actors
        self._region = region
        self._target = CallTarget(runtime, actors, region)

    # --- mesh -------------------------------------------------------------------------------------

    def _new_with_region(self, region: Region) -> ActorMesh:
        return ActorMesh(self._runtime, self._actors, region)

    def __getattr__(self, name: str) -> Any:
        actors = self.__dict__.get("_actors")
        method = actors.cls.endpoints.get(name) if actors is not None else None
        if method is None:
            if actors is None or name.startswith("__"):
                raise AttributeError(name)
            function = getattr(actors.cls.cls, name, None)
            if inspect.isfunction(function):
                return PlainMethod(
                    self._runtime, self._target, function, is_async=actors.cls.is_async
                )
            if name in DESCRIBING:
                return getattr(self._target, name)
            has = ", ".join(actors.cls.endpoints) or "none"
            raise AttributeError(
                f"{actors.cls.name} has no endpoint {name!r} (it has: {has}); mark the method "
                "with @endpoint to make it callable"
            )
        found: Endpoint[..., Any] = Endpoint(self._runtime, self._target, method)
        vars(self)[name] = found
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._actors.cls.endpoints, *DESCRIBING})

    @property
    def initialized(self) -> Future[None]:
        """Done when every constructor has run; fails with the error of one that raised.

        Raises:
            MeshStoppedError: the mesh was stopped.
        """
        self._target.check_usable()
        future = self._runtime.new_future()
        pending = _Ready(self._target, future)
        send_call(self._runtime, self._target, self._region, "", _NO_ARGUMENTS, pending)
        return future

    def stop(self, reason: str | None = None) -> Future[None]:
        """Stop its actors after the messages they have, clean-up included. Idempotent.

        The future is done after `cleanup_timeout` seconds at the latest. If actors still run then,
        a warning in the log names their ranks; they end once the endpoint that they run returns,
        and with their procs in any case.

        Raises:
            ValueError: this is a slice, or a reference that another process owns.
            TypeError: the reason is not text.
            SupervisionError: this process no longer holds the session of the mesh.
        """
        actors = self._actors
        whole = len(self._region) == len(actors.region)
        check_may_end("stop", actors.name, owned=actors.owned, whole=whole)
        reason = reason_text(reason, "stopped by client")
        check_in_reach(self._runtime.known.dead(actors.procs.uid))
        return self._stop(reason, settings().cleanup_s)

    def _stop(self, reason: str, bound_s: float) -> Future[None]:
        actors = self._actors
        future = self._runtime.new_future()
        if actors.stopped is not None:
            future.settle(lambda: None)
            return future
        actors.stopped = reason
        if actors.listed_in is not None:
            actors.listed_in.pop(actors.uid, None)
        self._runtime.routes.stop_replaying(actors.procs, actors.uid)
        self._runtime.ownership.on_mesh_stopping(actors.uid)
        run = self._runtime
        future.on_done(partial(_forget, run, actors.uid, actors.procs.uid, actors.name))
        if actors.recorded:
            self._runtime.node.send(AGENT, ForgetActors(actors.uid))
        pending = _Stopped(self._target, future)
        number = run.calls.open(pending)
        gone = self._target.failures_in(actors.region)
        message = StopActor(actors.uid, number, 0, reason, grace_s=bound_s)
        missed = run.routes.post(actors.procs, actors.region, message, skip=gone, gather=True)
        with uninterrupted(), run.answering:
            for position in {*gone, *missed}:
                run.calls.answer(number, position, OK, NO_PAYLOAD)
        if not future.done:
            due = run.deadlines.add(bound_s, partial(self._overdue, pending, bound_s))
            future.on_done(lambda: run.deadlines.cancel(due))
        return future

    def _overdue(self, pending: _Stopped, bound_s: float) -> None:
        """Actors have not ended in time: stop waiting for them, and log their ranks."""
        run, procs = self._runtime, self._target.procs
        with run.answering:
            ranks = [pending.region.global_rank(position) for position in pending.owing()]
            run.calls.drop(pending.number)
        if not ranks:
            return
        points = [(dict(procs.extent.point_of_rank(rank)), procs.name) for rank in ranks]
        log.warning(
            "%s has not ended within %.3g s of its stop(), on %s: it still runs an endpoint, its "
            "constructor or its clean-up, and ends after that; stop() of its procs ends it now",
            self._actors.text, bound_s,
            f"{procs.name}, {points_text(points)}",
        )  # fmt: skip
        pending.future.settle(lambda: None)

    def __reduce__(self) -> tuple[Any, ...]:
        actors = self._actors
        procs = self._runtime.known.current(actors.procs)
        return _reference, (actors.uid, actors.name, actors.cls.cls, procs, actors.region,
                            self._region)  # fmt: skip

    def __repr__(self) -> str:
        at = at_text(self._region.sizes)
        target = self._target
        stopped = ", stopped" if self._actors.stopped is not None else ""
        procs = target.procs.name
        return f"<ActorMesh {target.name!r}: {target.class_name}{at} on {procs!r}{stopped}>"


def call_target_of(mesh: ActorMesh) -> CallTarget:
    """The target of calls to a mesh or slice, whatever names its endpoints have."""
    return mesh._target  # pyright: ignore[reportPrivateUsage]


class OwnedActors:
    """A mesh of actors, as the supervisor of its owner sees it."""

    def __init__(self, mesh: ActorMesh) -> None:
        self.mesh = mesh
        self._target = call_target_of(mesh)
        self.name = self._target.name

    def record(self, failures: Sequence[RankFailure]) -> None:
        """Some of its actors have failed."""
        actors = self.mesh._actors  # pyright: ignore[reportPrivateUsage]
        for failure in failures:
            actors.failures.setdefault(failure.rank, failure)

    def describe_as_actor(self, failure: RankFailure, rank: int) -> RankFailure:
        """A failure of a proc, reworded as the failure of the actor that lived on it."""
        return self._target.describe_as_actor(failure, rank)

    def runs_on(self, procs: int, rank: int) -> bool:
        """Whether an actor of it lives on that proc."""
        return self._target.procs.uid == procs and rank in self._target.region

    def end(self, reason: str, grace_s: float) -> Future[None]:
        """Stop it, since its owner ends. Its actors have as long as their procs have."""
        return self.mesh._stop(reason, grace_s)  # pyright: ignore[reportPrivateUsage]


reserve(name for name in dir(ActorMesh) if not name.startswith("_"))


def _forget(run: Runtime, uid: int, procs: int, name: str) -> None:
    run.ownership.on_mesh_gone(uid)
    run.metrics.ended(procs, name)


def check_in_reach(dead: Mapping[int, RankFailure]) -> None:
    """Raise SupervisionError if another client holds the session of these procs.

    Such procs are alive, unlike other procs that cannot be called, but this process can't stop
    them.
    """
    failures = [failure for failure in dead.values() if failure.kind == "out of reach"]
    if failures:
        raise SupervisionError(failures=failures)


def _reference(
    uid: int, name: str, cls: type[Actor], procs: ProcsRef, base: Region, region: Region
) -> ActorMesh:
    actors = Actors(uid, name, actor_class(cls), procs, base, owned=False)
    return ActorMesh(runtime(), actors, region)


class _AllDone(PendingCall):
    """Done when every rank has answered, failed or died."""

    __slots__ = ("future",)

    def __init__(self, target: CallTarget, future: Future[None]) -> None:
        super().__init__(target.procs.uid, target, target.region)
        self.future = future

    def on_answer(self, position: int, payload: Payload) -> None:
        if not self.owed:
            self.future.settle(lambda: None)

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        self.on_answer(position, payload)

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self.on_answer(position, NO_PAYLOAD)


class _Stopped(_AllDone):
    """Done when every rank has stopped; a rank that has died has stopped too."""

    __slots__ = ()


class _Ready(_AllDone):
    """Done when every rank is ready; fails with the failure of the first rank that is not."""

    __slots__ = ()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        target = cast(CallTarget, self.actor_mesh)
        OneCall(target, self.region, self.future).on_error(position, status, payload)

    def on_lost(self, position: int, failure: RankFailure) -> None:
        target = cast(CallTarget, self.actor_mesh)
        OneCall(target, self.region, self.future).on_lost(position, failure)
