"""The context of a spawn: the creators of an actor, and pickled extras that front ends attach.

The message that spawns an actor carries both, and procs pass the extras on.

Runs in: a proc, on the thread of the actor or of the bootstrap function that carries the extras.
Invariants: every spawn from this process carries the extras that it received last, so the actors
that an actor spawns have them too. Extras that cannot be unpickled are logged and fail no spawn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from monarch._src.actor.context import ActorId, ActorInstance, CreatorInstance
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.serialize import unpack_value
from monarch._src.shape import Extent
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Creator, SpawnActor

log = logging.getLogger("monarch.actor")
_extras: tuple[bytes, ...] = ()


def apply_spawn_extras(extras: Sequence[bytes], target: str) -> None:
    """Unpickle the extras for their side effects; `target` names what was spawned with them."""
    global _extras
    if not extras:
        return
    _extras = tuple(extras)
    try:
        for pickled in extras:
            unpack_value(Payload(pickled))
    except Exception:
        log.warning("an extra that was sent with %s cannot be used here", target, exc_info=True)


def received_extras() -> tuple[bytes, ...]:
    """The extras to attach to each spawn from this process; empty in a client."""
    return _extras


CLIENT = "client"  # name and class of the instance that stands for a client
BOOTSTRAP = "bootstrap"  # name and class of the instance that runs a bootstrap function


def creator_chain(instance: ActorInstance) -> list[Creator]:
    """An actor and its own creators, innermost first; empty for the client."""
    found: list[Creator] = []
    creator: ActorInstance | CreatorInstance | None = instance
    while creator is not None and creator.actor_id.uid:  # the client's uid is 0
        ref: Any = creator.proc_ref
        extent = creator.rank.extent
        found.append(
            Creator(
                creator.actor_id.node, creator.actor_id.uid, creator.name, creator.class_name,
                creator.rank.rank,
                list(extent.labels), list(extent.sizes), ref.uid, ref.name, list(ref.labels),
                list(ref.sizes), ref.owner, list(ref.sites),
            )
        )  # fmt: skip
        creator = creator.creator
    return found


def spawned_by_bootstrap(spec: SpawnActor) -> bool:
    """Whether a bootstrap function of the same proc mesh is among the actor's creators."""
    return any(
        creator.mesh == spec.mesh and creator.name == creator.class_name == BOOTSTRAP
        for creator in spec.made_by
    )


def creator_of(spec: SpawnActor, directory: str, client: ProcsRef | None) -> CreatorInstance | None:
    """The creator of that actor; None for a controller."""
    if not spec.creator or client is None:
        return None
    nowhere = Extent((), ()).point_of_rank(0)
    found = CreatorInstance(ActorId(client.owner, 0, CLIENT), nowhere, CLIENT, None, client)
    for creator in reversed(spec.made_by):
        ref = client if creator.mesh == client.uid else ProcsRef(
            creator.mesh, creator.mesh_name, tuple(creator.mesh_labels), tuple(creator.mesh_sizes),
            directory, creator.mesh_owner, client.host, sites=tuple(creator.mesh_sites),
        )  # fmt: skip
        point = Extent(creator.labels, creator.sizes).point_of_rank(creator.rank)
        actor_id = ActorId(creator.node, creator.actor, creator.name)
        found = CreatorInstance(actor_id, point, creator.class_name, found, ref)
    return found
