"""The creators of an actor: written into the message that spawns it, and read back there."""

from __future__ import annotations

from typing import Any

from monarch._src.actor.context import ActorId, ActorInstance, CreatorInstance
from monarch._src.actor.refs import ProcsRef
from monarch._src.shape import Extent
from monarch._src.wire.messages import Creator, SpawnActor

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
