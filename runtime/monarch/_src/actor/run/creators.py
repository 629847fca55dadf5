"""The creators of an actor: written into the message that spawns it, and read back there."""

from __future__ import annotations

from typing import Any

from monarch._src.actor.context import ActorId, ActorInstance, CreatorInstance
from monarch._src.actor.refs import ProcsRef
from monarch._src.shape import Extent
from monarch._src.wire.messages import Creator, SpawnActor

CLIENT = "client"
BOOTSTRAP = "bootstrap"  # name and class of the instance that runs a bootstrap function


def creator_chain(instance: ActorInstance) -> list[Creator]:
    """An actor and its own creators, innermost first; empty for the client."""
    found: list[Creator] = []
    who: ActorInstance | CreatorInstance | None = instance
    while who is not None and who.actor_id.uid:  # the client's uid is 0
        ref: Any = who.proc_ref
        extent = who.rank.extent
        found.append(
            Creator(
                who.actor_id.node, who.actor_id.uid, who.name, who.class_name, who.rank.rank,
                list(extent.labels), list(extent.sizes), ref.uid, ref.name, list(ref.labels),
                list(ref.sizes), ref.owner, list(ref.sites),
            )
        )  # fmt: skip
        who = who.creator
    return found


def spawned_by_bootstrap(spec: SpawnActor) -> bool:
    """Whether a bootstrap function of the same proc mesh is among the actor's creators."""
    return any(
        who.mesh == spec.mesh and who.name == who.class_name == BOOTSTRAP for who in spec.made_by
    )


def creator_of(spec: SpawnActor, directory: str, client: ProcsRef | None) -> CreatorInstance | None:
    """The creator of that actor; None for a controller."""
    if not spec.creator or client is None:
        return None
    nowhere = Extent((), ()).point_of_rank(0)
    found = CreatorInstance(ActorId(client.owner, 0, CLIENT), nowhere, CLIENT, None, client)
    for who in reversed(spec.made_by):
        ref = client if who.mesh == client.uid else ProcsRef(
            who.mesh, who.mesh_name, tuple(who.mesh_labels), tuple(who.mesh_sizes), directory,
            who.mesh_owner, client.host, sites=tuple(who.mesh_sites),
        )  # fmt: skip
        point = Extent(who.labels, who.sizes).point_of_rank(who.rank)
        actor_id = ActorId(who.node, who.actor, who.name)
        found = CreatorInstance(actor_id, point, who.class_name, found, ref)
    return found
