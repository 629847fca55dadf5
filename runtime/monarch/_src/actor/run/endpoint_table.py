"""The endpoints of one actor, looked up by name, with their metrics.

Runs in: a proc, on the actor's thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from monarch._src.actor.endpoint import ActorClass, EndpointMethod, actor_class
from monarch._src.actor.ports import Port
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.state.endpoint_metrics import EndpointCounts
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, SpawnActor
from monarch._src.wire.metrics_codec import Key

# Built-in endpoints: UPDATE replaces the class of a live actor; CLASS returns the class to a caller
# that expects another one. No method can have these names.
UPDATE = "class ="
CLASS = "class"


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class BoundEndpoint:
    """One endpoint of one actor; `counts` is None if it is not instrumented."""

    __slots__ = ("counts", "method")

    def __init__(self, method: EndpointMethod[Any, Any], counts: EndpointCounts | None) -> None:
        self.method = method
        self.counts = counts


class EndpointTable:
    """The endpoints of one actor."""

    def __init__(self, runtime: Runtime, spec: SpawnActor, cls: ActorClass) -> None:
        self._runtime = runtime
        self._spec = spec
        self._class = cls
        self._bound: dict[str, BoundEndpoint] = {}

    def look_up(self, call: Call, payload: Payload, waited_ns: int) -> BoundEndpoint | None:
        """Find the endpoint of a call and count the call; None for the empty name.

        Raises:
            AttributeError: the actor has no endpoint of that name.
        """
        bound = self._bound.get(call.endpoint)
        if bound is None:
            if not call.endpoint:
                return None
            bound = self._bound[call.endpoint] = self._bind(call.endpoint)
        counts = bound.counts
        if counts is not None:
            nbytes = payload.nbytes if payload.buffers else len(payload.body)
            counts.taken(nbytes, waited_ns)
        return bound

    def _bind(self, name: str) -> BoundEndpoint:
        if name == UPDATE:
            update = _awaited(self._update) if self._class.is_async else self._update
            return BoundEndpoint(EndpointMethod(update, instrument=False), None)
        if name == CLASS:
            ask = (
                _awaited(self._class_unless_named)
                if self._class.is_async
                else self._class_unless_named
            )
            return BoundEndpoint(EndpointMethod(ask, instrument=False), None)
        method = self._class.endpoints.get(name)
        if method is None:
            # A call of an unmarked method comes from as_endpoint, which has checked it.
            function = getattr(self._class.cls, name, None)
            if not inspect.isfunction(function):
                raise AttributeError(f"{self._class.name} has no endpoint {name!r}")
            if self._class.is_async and not inspect.iscoroutinefunction(function):
                function = _awaited(function)
            method = EndpointMethod[Any, Any](function)
        if not method.instrument:
            return BoundEndpoint(method, None)
        spec = self._spec
        key = Key(spec.mesh, spec.mesh_name, spec.class_name, spec.name, name)
        return BoundEndpoint(method, self._runtime.metrics.counts(key, monotonic_ns()))

    def _update(self, instance: Any, cls: Any) -> None:
        """Replace the class of the actor, from its next message on; its attributes stay."""
        new = actor_class(cls)
        instance.__class__ = cls  # TypeError if the layouts differ
        self._class = new
        self._bound.clear()

    def _class_unless_named(self, _instance: Any, module: str, qualname: str) -> type[Any] | None:
        """The class of the actor; None if it has that module and name."""
        cls = self._class.cls
        return None if (cls.__module__, cls.__qualname__) == (module, qualname) else cls

    def port_for(self, peer: str, call: Call, counts: EndpointCounts | None) -> Port[Any]:
        """The port through which an endpoint answers that call, with the endpoint's metrics."""
        to, address = call.reply_to, call.reply_address
        if not to:
            to, address = peer, self._runtime.node.address_of(peer)
        return Port(to, address, call.call, call.rank, counts=counts)

    def is_concurrent(self, name: str) -> bool:
        """Whether calls of that endpoint overlap."""
        method = self._class.endpoints.get(name)
        return method is not None and method.concurrent
