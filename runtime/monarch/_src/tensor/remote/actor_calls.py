"""Calls of actors with tensors of a mesh as arguments, and `rref`, whose results stay on the ranks.

The worker of the tensors on each rank calls the actor beside it, in the order of the operations of
the mesh: operations that were issued later wait for the endpoint.

Runs in: the client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from monarch._src.actor.call.call import Endpoint
from monarch._src.actor.call.on_ranks import WAYS
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.tensor.active_mesh import active_channel
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.ranks import forwarded_calls
from monarch._src.tensor.remote.functions import Propagate, Remote
from monarch._src.tensor.tensor_errors import place_text
from monarch._src.tensor.trees import taken_apart

# Paths, by which the ranks import the functions.
ASK = f"{forwarded_calls.__name__}.ask"
ASK_FOR_TENSORS = f"{forwarded_calls.__name__}.ask_for_tensors"
TELL = f"{forwarded_calls.__name__}.tell"


def call(
    endpoint: Endpoint[Any, Any], adverb: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of an adverb. See `Endpoint`.

    Raises:
        ValueError: the tensors are not on exactly the ranks of the actors; a tensor was dropped;
            `rref` has no tensors and no mesh is active.
    """
    actors = endpoint.actor_mesh
    label = f"{actors._target.class_name}.{endpoint.name}"  # pyright: ignore[reportPrivateUsage]
    channel = taken_apart((args, kwargs)).channel or active_channel()
    if channel is None:
        raise ValueError(
            f"no device mesh is active: call {label}.rref within `with mesh.activate():`, or with "
            "tensors of a mesh"
        )
    _check_place(channel, actors, label)
    sent = (actors, endpoint.name, args, kwargs)
    match adverb:
        case "call_one":
            return _remote(ASK, label, None).call_one(*sent)
        case "choose":
            return _remote(ASK, label, None).choose(*sent)
        case "stream":
            return _remote(ASK, label, None).stream(*sent)
        case "broadcast":
            return _remote(TELL, label, None).broadcast(*sent)
        case "rref":
            return _remote(ASK_FOR_TENSORS, label, endpoint.propagate or "inspect").rref(*sent)
        case _:
            return _remote(ASK, label, None).call(*sent)


@lru_cache(256)
def _remote(path: str, label: str, propagate: Propagate) -> Remote:
    made = Remote(path, _of_arguments(propagate) if callable(propagate) else propagate)
    made.__name__ = label
    return made


def _of_arguments(propagate: Callable[..., Any]) -> Callable[..., Any]:
    """The propagation of an endpoint, which gets the arguments of the endpoint."""

    def propagated(_actors: Any, _name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return propagate(*args, **kwargs)

    return propagated


def _check_place(channel: Channel, actors: ActorMesh, label: str) -> None:
    target = actors._target  # pyright: ignore[reportPrivateUsage]
    procs = channel.mesh._procs.ref  # pyright: ignore[reportPrivateUsage]
    if target.procs.uid == procs.uid and target.region == channel.region:
        return
    there = place_text(target.procs.name, target.region)
    raise ValueError(
        f"{label}: the tensors are on {place_text(channel.name, channel.region)}, and the actors "
        f"on {there}; take the same ranks with tensor.slice_mesh(...) or mesh.slice(...), move "
        "the tensors with tensor.to_mesh(...), or send their values: "
        "monarch.fetch_shard(tensor).get()"
    )


WAYS.tensors = call
