"""`OpaqueObject`: an object on every rank, with methods that the client calls.

Runs in: the client; ranks run the functions that the client sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from monarch._src.actor.future import Future
from monarch._src.tensor.opaque import OpaqueRef
from monarch._src.tensor.remote.functions import function_at, remote

F = TypeVar("F", bound="Callable[..., Any]")


class OpaqueObject:
    """An object on every rank, with methods that the client calls. Derive a class from it:

    class Optimizer(OpaqueObject):
        @opaque_method
        def step(self, gradients): ...      # tells the shapes of the result; ranks do not run it

    optimizer = Optimizer("package.module.RealOptimizer", 0.1)   # ranks make one each
    optimizer.step(gradients)                                    # ranks call its `step`
    """

    def __init__(self, constructor: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Have each rank of the active mesh call `constructor`, a class or its import path.

        Raises:
            ValueError: no mesh is active, and no argument is a tensor of one.
        """
        self._object: OpaqueRef = _construct(constructor, args, kwargs)

    def call_method(
        self, name: str, propagate: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method on every rank; returns its result, with tensors of the mesh.

        Args:
            propagate: a function of the same arguments, without the object, that returns tensors
                of the shapes of the result.
        """

        def propagated(_ref: Any, _name: str, args: Any, kwargs: Any) -> Any:
            return propagate(*args, **kwargs)

        return _call_method.with_propagate(propagated)(self._object, name, args, kwargs)

    def call_method_on_shard_and_fetch(
        self, name: str, /, *args: Any, shard: Mapping[str, int] | None = None, **kwargs: Any
    ) -> Future[Any]:
        """Call a method on one rank; the future yields its result, with local tensors.

        Args:
            shard: the coordinates of the rank; dims that are left out have 0.
        """
        sent = (self._object, name, args, kwargs)
        return _call_method.on_shard(sent, {}, shard or {})


def opaque_method(function: F) -> F:
    """Mark a method of an `OpaqueObject`: ranks call the method of that name of their object.

    The body is not run on ranks. The client runs it on tensors without values, for the shapes of
    the result.
    """
    name = getattr(function, "__name__", "")

    @wraps(function)
    def call(self: OpaqueObject, *args: Any, **kwargs: Any) -> Any:
        def propagate(*args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **kwargs)

        return self.call_method(name, propagate, *args, **kwargs)

    found: Any = call
    return found


def _of_construct(*_: Any) -> OpaqueRef:
    return OpaqueRef()


@remote(propagate=_of_construct)
def _construct(constructor: Any, args: Any, kwargs: Any) -> OpaqueRef:
    """On a rank: make the object."""
    if isinstance(constructor, str):
        constructor = function_at(constructor)
    return OpaqueRef(constructor(*args, **kwargs))


@remote
def _call_method(ref: OpaqueRef, name: str, args: Any, kwargs: Any) -> Any:
    """On a rank: call a method of the object."""
    return getattr(ref.value, name)(*args, **kwargs)
