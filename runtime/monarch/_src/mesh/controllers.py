"""Controllers: singleton actors in the client's process, found by name from any process.

Runs in: any process; the actors themselves in the client, each on a thread of its own.
The caller derives the uid from the name and asks the client to spawn the actor. The client ignores
a request for an actor that exists. So the first caller's arguments win, and all callers hold the
same reference.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from monarch._src.actor.call.call import send_call
from monarch._src.actor.call.responses import OneCall
from monarch._src.actor.checked_names import name_text
from monarch._src.actor.endpoint import Actor, actor_class
from monarch._src.actor.future import Future
from monarch._src.actor.run.endpoint_table import CLASS
from monarch._src.actor.runtime import runtime
from monarch._src.actor.serialize import pack_value
from monarch._src.mesh.actor_mesh import ActorMesh, Actors, CallTarget
from monarch._src.mesh.actor_spawning import constructor_payload
from monarch._src.mesh.client import session_for_client
from monarch._src.mesh.mock_registry import mock_of
from monarch._src.shape import Extent, Region
from monarch._src.wire.messages import SpawnActor

A = TypeVar("A", bound=Actor)


def get_or_spawn_controller(name: str, Class: type[A], *args: Any, **kwargs: Any) -> Future[A]:
    """The controller of that name; made with these arguments if it does not exist.

    Later callers get the existing controller, whatever its class. The future is done when its
    constructor has run. If the constructor raises, the future of each waiting caller fails, and the
    next caller makes the controller anew.

    Raises:
        TypeError: the arguments do not fit `__init__`, or one cannot be pickled; the name is not
            text.
        ValueError: `Class` breaks a rule of actor classes, or the name is empty.
    """
    if not name_text("a controller", name):
        raise ValueError("a controller needs a name")
    Class = mock_of(Class)
    cls = actor_class(Class)
    payload = constructor_payload(Class, args, kwargs)
    session_for_client()
    run = runtime()
    ref = run.client_ref
    assert ref is not None
    uid = controller_uid(name)
    spec = SpawnActor(uid, name, cls.name, ref.uid, ref.name, 0, [], [], "", if_absent=True)
    region = Region.of_extent(Extent((), ()))
    run.routes.post(ref, region, spec, payload)
    target = CallTarget(run, Actors(uid, name, cls, ref, region, owned=False), region)
    found: Future[A] = run.new_future()
    # Answered when its constructor has run.
    other: Future[type[Actor] | None] = run.new_future()
    pending = other.pending = OneCall(target, region, other)
    class_name_call = pack_value(
        ((Class.__module__, Class.__qualname__), cast("dict[str, Any]", {}))
    )
    send_call(run, target, region, CLASS, class_name_call, pending)

    def settle() -> None:
        def value() -> A:
            there = other.get()
            made = cls if there is None else actor_class(there)
            actors = Actors(uid, name, made, ref, region, owned=False)
            return cast(A, ActorMesh(run, actors, region))

        found.settle(value)

    other.on_done(settle)
    return found


def controller_uid(name: str) -> int:
    """The uid of a controller: 61 bits of a digest, below a bit that no counted uid sets."""
    import hashlib  # 2 ms, and few programs have controllers

    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return (1 << 62) | (int.from_bytes(digest, "big") >> 3)
