"""Who runs this code: what an actor, or the client, can ask about itself."""

from __future__ import annotations

from monarch._src.actor.context import Context, current
from monarch._src.actor.runtime import runtime
from monarch._src.shape import Point


def context() -> Context:
    """Who runs this code: the actor and message at hand, or the client."""
    return current.get() or runtime().root


def current_rank() -> Point:
    """This actor's place in the slice that the present message was sent to."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """The dims and sizes of that slice."""
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """The name and place of the actor that runs this code."""
    instance = context().actor_instance
    return f"{instance.name}{dict(instance.rank) or ''}"
