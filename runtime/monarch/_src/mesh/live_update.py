"""Another class for actors that live: they keep what they have, and run its code.

Runs in: the client that has spawned them, any thread.
"""

from __future__ import annotations

from typing import Any, cast

from monarch._src.actor.call.call import send_call
from monarch._src.actor.call.responses import AllCall
from monarch._src.actor.endpoint import Actor, actor_class
from monarch._src.actor.errors.remote import ship
from monarch._src.actor.run.endpoint_table import UPDATE
from monarch._src.mesh.actor_mesh import ActorMesh, Actors, call_target_of
from monarch._src.mesh.proc_mesh import owned_meshes


def actor_meshes() -> list[ActorMesh]:
    """The actor meshes that this client has spawned and not stopped, oldest first."""
    found: list[ActorMesh] = []
    for mesh in owned_meshes():
        run, procs = mesh._runtime, mesh._procs  # pyright: ignore[reportPrivateUsage]
        found += [
            ActorMesh(run, actors, actors.region)
            for actors in list(procs.actors.values())
            if actors.stopped is None
        ]
    return found


def actor_class_of(mesh: ActorMesh) -> type[Actor]:
    """The class whose instances the mesh consists of."""
    return _actors(mesh).cls.cls


def update_actors(mesh: ActorMesh, cls: type[Actor], timeout: float | None = None) -> None:
    """Make every actor of the mesh an instance of `cls`, behind the messages that it has.

    Its attributes stay; no constructor runs. Returns when all have it: later calls run the code of
    `cls`, and are checked against its endpoints. `timeout`: seconds.

    Raises:
        ValueError: `cls` breaks a rule of actor classes, is sync where the actors are async or the
            other way round, or this is a slice. TypeError: it is no class, or cannot be sent.
        ActorError: a rank could not do it, because what its actor has does not fit.
        TimeoutError: an actor is still busy; it will do it when it is not.
    """
    actors, whom = _actors(mesh), call_target_of(mesh)
    old, new = actors.cls, actor_class(cls)
    if len(whom.region) != len(actors.region):
        raise ValueError(f"update the whole mesh {whom.name!r}, not a slice of it")
    if old.is_async != new.is_async:
        was, now = ("async", "sync") if old.is_async else ("sync", "async")
        raise ValueError(
            f"the actors of {whom.name!r} are {was} and {new.name} is {now} now, which actors that "
            "live can't become; stop them and spawn them again"
        )
    whom.check_usable()
    run = mesh._runtime  # pyright: ignore[reportPrivateUsage]
    payload = ship(((cls,), cast("dict[str, Any]", {})), own=2, defines=True)
    future = run.new_future()
    pending = future.pending = AllCall(whom, whom.region, future)
    send_call(run, whom, whom.region, UPDATE, payload, pending)
    future.get(timeout)
    for name, method in new.endpoints.items():
        # What somebody holds of the mesh, a slice or an endpoint, goes over too.
        before = old.endpoints.get(name)
        if before is not None and before is not method:
            vars(before).update(vars(method))
    actors.cls = new


def _actors(mesh: ActorMesh) -> Actors:
    return mesh._actors  # pyright: ignore[reportPrivateUsage]
