"""Forwards calls from the worker of the tensors to an actor of the same process.

The actor gets the rank's tensor itself and no copy: the message has a number, under which the
tensor waits in this process until the actor reads the message.

Runs in: a rank, on the thread of its `TensorWorker`; `claimed` on that of the actor.
Owns: the tensors that wait. Those for an actor that has ended are dropped by the next call.
"""

from __future__ import annotations

import itertools
from typing import Any

from monarch._src.actor.call.call import Endpoint
from monarch._src.actor.call.send import as_endpoint
from monarch._src.actor.context import current
from monarch._src.actor.errors.remote import ForwardedError
from monarch._src.actor.runtime import runtime
from monarch._src.errors import ActorError
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.shape import Region
from monarch._src.tensor.opaque import OpaqueRef
from monarch._src.tensor.torch_modules import TorchTensor, map_tree, torch

_waiting: dict[int, tuple[int, Any]] = {}  # by number: the actor's uid, and the tensor
_numbers = itertools.count(1)


class Lent:
    """A tensor as an argument of a call within this process."""

    def __init__(self, actor: int, tensor: Any) -> None:
        self._loan = actor, tensor

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        number = next(_numbers)
        _waiting[number] = self._loan
        return claimed, (number,)


def claimed(number: int) -> Any:
    """The tensor that waits under that number."""
    _, tensor = _waiting.pop(number)
    return tensor


def waiting() -> int:
    """How many tensors wait for live actors of this process; drops those of others."""
    live = runtime().cells
    for number, (actor, _) in list(_waiting.items()):
        if actor not in live:
            _waiting.pop(number, None)
    return len(_waiting)


def ask(actors: ActorMesh, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the actor of this rank, and return its answer.

    Raises:
        SupervisionError: the actor is dead.
        ForwardedError: the endpoint has raised.
    """
    endpoint, part_of = _beside(actors, name)
    args, kwargs = _lending(actors, args, kwargs)
    try:
        answer = endpoint.forward(args, kwargs, part_of, answered=True)
        assert answer is not None
        found = answer.get()
        _finish_on_gpu()
        return found
    except ActorError as error:
        raise ForwardedError(error.failures[0], error.exception) from None


def ask_for_tensors(
    actors: ActorMesh, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The same as `ask`, but raises the exception of the endpoint itself."""
    try:
        return ask(actors, name, args, kwargs)
    except ForwardedError as error:
        raise error.exception or error from None


def tell(actors: ActorMesh, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Send a message to the actor of this rank, without an answer.

    Raises:
        SupervisionError: the actor is known to be dead.
    """
    endpoint, part_of = _beside(actors, name)
    args, kwargs = _lending(actors, args, kwargs)
    endpoint.forward(args, kwargs, part_of, answered=False)


def _beside(actors: ActorMesh, name: str) -> tuple[Endpoint[Any, Any], tuple[Region, int]]:
    """The endpoint of the actor of this rank, and the place of the rank among the actors."""
    context = current.get()
    assert context is not None
    region = actors._target.region  # pyright: ignore[reportPrivateUsage]
    position = region.position(context.actor_instance.rank.rank)
    one = actors.slice(**dict(region.extent.point_of_rank(position)))
    return as_endpoint(getattr(one, name)), (region, position)


def _lending(
    actors: ActorMesh, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with each tensor lent to the actor."""
    waiting()  # drops those of actors that have ended
    _finish_on_gpu()
    uid = actors._actors.uid  # pyright: ignore[reportPrivateUsage]

    def lent(value: Any) -> Any:
        return Lent(uid, value) if isinstance(value, (TorchTensor, OpaqueRef)) else value

    return map_tree(lent, (args, kwargs))


def _finish_on_gpu() -> None:
    """Wait until the GPU has computed the tensors that this thread and an actor exchange.

    An actor uses the GPU's default stream, as the stream `"main"` does. Other streams of tensors
    have streams of their own there.
    """
    cuda = torch.cuda
    if cuda.is_initialized() and cuda.current_stream() != cuda.default_stream():
        cuda.synchronize()
