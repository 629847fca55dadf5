"""Replaces the class of live actors: they keep their attributes, and run the new code.

Runs in: the client that has spawned them, any thread.
"""

from __future__ import annotations

from typing import Any, cast

from monarch._src.actor.call.call import send_call
from monarch._src.actor.call.responses import AllCall
from monarch._src.actor.endpoint import Actor, actor_class
from monarch._src.actor.run.endpoint_table import UPDATE
from monarch._src.actor.serialize import pack_value
from monarch._src.mesh.actor_mesh import ActorMesh, Actors, call_target_of
from monarch._src.mesh.meshes import ProcMesh, owned_meshes, shared_procs


def actor_meshes() -> list[ActorMesh]:
    """The actor meshes that this client has spawned and not stopped, oldest first."""
    found: list[ActorMesh] = []
    for mesh in owned_meshes():
        run, procs = mesh._runtime, shared_procs(mesh)  # pyright: ignore[reportPrivateUsage]
        found += [
            ActorMesh(run, actors, actors.region)
            for actors in list(procs.actors.values())
            if actors.stopped is None
        ]
    return found


def actor_class_of(mesh: ActorMesh) -> type[Actor]:
    """The actor class of a mesh."""
    return _actors(mesh).cls.cls


def failed_ranks(mesh: ActorMesh | ProcMesh) -> list[int]:
    """The ranks, in the proc mesh as it was spawned, that have failed.

    Of procs, those whose process has ended. Of actors, those whose actor has died or whose
    constructor has raised, without those whose process has ended. Only the client that spawned the
    mesh knows all of them.
    """
    if isinstance(mesh, ProcMesh):
        return sorted(mesh._failures())  # pyright: ignore[reportPrivateUsage]
    region = call_target_of(mesh).region
    return sorted(rank for rank in list(_actors(mesh).failures) if rank in region)


def update_actors(mesh: ActorMesh, cls: type[Actor], timeout: float | None = None) -> None:
    """Make every actor of the mesh an instance of `cls`, after the messages already queued.

    The actors keep their attributes; no constructor runs. Returns when all are updated: later calls
    run the code of `cls`, and are checked against its endpoints. `timeout`: seconds.

    Raises:
        ValueError: `cls` breaks a rule of actor classes; one of the classes is sync and the other
            async; or this is a slice. TypeError: `cls` is not a class, or cannot be pickled.
        ActorError: a rank failed to update, because the state of its actor does not fit.
        TimeoutError: an actor is still busy; it is updated when it no longer is.
    """
    actors, target = _actors(mesh), call_target_of(mesh)
    old, new = actors.cls, actor_class(cls)
    if len(target.region) != len(actors.region):
        raise ValueError(f"update the whole mesh {target.name!r}, not a slice of it")
    if old.is_async != new.is_async:
        was, now = ("async", "sync") if old.is_async else ("sync", "async")
        raise ValueError(
            f"the actors of {target.name!r} are {was} and {new.name} is {now} now, and live actors "
            "cannot change that; stop them and spawn them again"
        )
    target.check_usable()
    run = mesh._runtime  # pyright: ignore[reportPrivateUsage]
    payload = pack_value(((cls,), cast("dict[str, Any]", {})), own=2, defines=True)
    future = run.new_future()
    pending = future.pending = AllCall(target, target.region, future)
    send_call(run, target, target.region, UPDATE, payload, pending)
    future.get(timeout)
    for name, method in new.endpoints.items():
        # Existing slices and endpoints of the mesh share these objects, so they are updated too.
        before = old.endpoints.get(name)
        if before is not None and before is not method:
            vars(before).update(vars(method))
    actors.cls = new


def _actors(mesh: ActorMesh) -> Actors:
    return mesh._actors  # pyright: ignore[reportPrivateUsage]
