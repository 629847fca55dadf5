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
from monarch._src.actor.serialize import unpack_value
from monarch._src.actor.state.endpoint_metrics import EndpointCounts
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, SpawnActor
from monarch._src.wire.process_codec import Key

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

    __slots__ = ("_node", "counts", "method", "name")

    def __init__(
        self, name: str, method: EndpointMethod[Any, Any], counts: EndpointCounts | None, node: Node
    ) -> None:
        self.name = name  # one object for all calls, where each call brings its own
        self.method = method
        self.counts = counts
        self._node = node

    def arguments(
        self, peer: str, call: Call, payload: Payload
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unpickle the arguments of a call, and let go of its payload.

        An endpoint with `explicit_response_port` gets the port of the answer as its first argument.
        """
        args, kwargs = unpack_value(payload)
        payload.drop()
        if call.by_port:
            args = (self._port_for(peer, call), *args)
        return args, kwargs

    def _port_for(self, peer: str, call: Call) -> Port[Any]:
        to, address = call.reply_to, call.reply_address
        if not to:
            to, address = peer, self._node.address_of(peer)
        return Port(to, address, call.call, call.rank, counts=self.counts)


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
            return self._built_in(name, self._update)
        if name == CLASS:
            return self._built_in(name, self._class_unless_named)
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
            return BoundEndpoint(name, method, None, self._runtime.node)
        spec = self._spec
        key = Key(spec.mesh, spec.mesh_name, spec.class_name, spec.name, name)
        counts = self._runtime.metrics.counts(key, monotonic_ns())
        return BoundEndpoint(name, method, counts, self._runtime.node)

    def _built_in(self, name: str, function: Callable[..., Any]) -> BoundEndpoint:
        called = _awaited(function) if self._class.is_async else function
        method = EndpointMethod[Any, Any](called, instrument=False)
        return BoundEndpoint(name, method, None, self._runtime.node)

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

    def is_concurrent(self, name: str) -> bool:
        """Whether calls of that endpoint overlap."""
        method = self._class.endpoints.get(name)
        return method is not None and method.concurrent
