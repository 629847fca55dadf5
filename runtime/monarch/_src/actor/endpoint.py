"""Endpoints: the methods of an actor that other processes can call, and the rules of actor classes.

The caller checks all of these rules before it sends a message.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

import msgspec

from monarch._src.actor.method_declaration import MethodDeclaration
from monarch._src.failures.report import Undeliverable
from monarch._src.shape import IndexedMesh, Region

if TYPE_CHECKING:
    from monarch._src.actor.call.call import Endpoint
    from monarch._src.actor.future import Future
    from monarch._src.actor.ports import Port

P = ParamSpec("P")
R = TypeVar("R")

_reserved: frozenset[str] = frozenset()


def reserve(names: Iterable[str]) -> None:
    """Refuse endpoints of these names, which actor meshes define. Called once by `mesh`."""
    global _reserved
    _reserved = frozenset(names)


class EndpointMethod(MethodDeclaration, Generic[P, R]):
    """A method marked with `@endpoint`. On an actor instance it is the plain method."""

    # An actor mesh is typed as its actor class, so attribute access yields an Endpoint.
    @overload
    def __get__(self, instance: None, owner: type) -> EndpointMethod[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Endpoint[P, R]: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        return self if instance is None else self.function.__get__(instance, owner)


class _EndpointDecorator:
    """`@endpoint` or `@concurrent_endpoint`, with or without options."""

    def __init__(self, *, concurrent: bool) -> None:
        self._concurrent = concurrent

    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], Awaitable[R]], /
    ) -> EndpointMethod[P, R]: ...
    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> EndpointMethod[P, R]: ...
    @overload
    def __call__(
        self,
        method: None = None,
        *,
        propagate: Any = None,
        explicit_response_port: Literal[True],
        instrument: bool = True,
    ) -> _PortEndpointDecorator: ...
    @overload
    def __call__(
        self,
        method: None = None,
        *,
        propagate: Any = None,
        explicit_response_port: Literal[False] = False,
        instrument: bool = True,
    ) -> _EndpointDecorator: ...
    def __call__(
        self,
        method: Any = None,
        *,
        propagate: Any = None,
        explicit_response_port: bool = False,
        instrument: bool = True,
    ) -> Any:
        """Mark a method as callable from other processes.

        Args:
            propagate: how `rref` learns the shapes of the tensors that the method returns. A
                function gets the arguments, as tensors without values, and returns tensors of
                these shapes. By default a rank is asked after each call.
            explicit_response_port: the method takes a `Port` as its first argument and answers
                through it, at any time and any number of times; its return value is dropped.
            instrument: whether the caller and the rank count and time the calls; see
                `monarch.observe.metrics`.
        """
        make = partial(
            _make,
            concurrent=self._concurrent,
            by_port=explicit_response_port,
            instrument=instrument,
            propagate=propagate,
        )
        return make if method is None else make(method)


class _PortEndpointDecorator(Protocol):
    """`@endpoint(explicit_response_port=True)`."""

    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, Port[R], P], Awaitable[None]], /
    ) -> EndpointMethod[P, R]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, Port[R], P], None], /
    ) -> EndpointMethod[P, R]: ...


def _make(
    method: Any, *, concurrent: bool, by_port: bool, instrument: bool, propagate: Any
) -> EndpointMethod[Any, Any]:
    if concurrent and isinstance(method, EndpointMethod):
        raise ValueError(
            f"{method.name} is an endpoint already, which @concurrent_endpoint does not wrap: mark "
            "it with @concurrent_endpoint only, and give that the options"
        )
    if not callable(method) or isinstance(method, (type, staticmethod, classmethod)):
        raise TypeError(f"@endpoint marks methods; {method!r} is none")
    if concurrent and not inspect.iscoroutinefunction(method):
        raise ValueError(f"@concurrent_endpoint needs an `async def`; {method!r} is none")
    return EndpointMethod(
        cast("Callable[..., Any]", method),
        concurrent=concurrent,
        by_port=by_port,
        instrument=instrument,
        propagate=propagate,
    )


endpoint = _EndpointDecorator(concurrent=False)
# For `async def` only: calls overlap from their first `await` on.
concurrent_endpoint = _EndpointDecorator(concurrent=True)


class _Logger:
    """`Actor.logger`: one logger for each class, named after it."""

    def __get__(self, instance: object | None, owner: type) -> logging.Logger:
        return logging.getLogger(f"{owner.__module__}.{owner.__qualname__}")


class Actor(IndexedMesh):
    """Base of actor classes. Methods marked `@endpoint` can be called from other processes.

    An actor whose endpoints are all plain `def` is a sync actor: it runs on its own thread and may
    block in `.get()`. An actor whose endpoints are all `async def` has its own event loop.
    `__cleanup__(self, exception)` runs when the actor ends. `__supervise__(self, failure) -> bool`
    runs when a mesh that the actor owns fails, and returns true if it has handled the failure.

    `ProcMesh.spawn` returns a mesh of instances, which is typed as this class.
    """

    logger = _Logger()

    if TYPE_CHECKING:  # what a mesh of instances has beside the endpoints; see `ActorMesh`

        @property
        def initialized(self) -> Future[None]: ...
        def stop(self, reason: str | None = None) -> Future[None]: ...

    def _handle_undeliverable_message(self, message: Undeliverable) -> bool:
        """Called when a message that this actor sent without expecting an answer was not delivered.

        Override it and return True to handle that; otherwise the actor fails. It runs between
        messages, and may be `async def` on an async actor.
        """
        return False

    def _new_with_region(self, region: Region) -> Any:
        raise TypeError("an actor's own instance is no mesh; slice the mesh that `spawn` returned")


LABEL = "__monarch_label__"
"""An actor class of the runtime, or of the notebook, may have a label in place of its name."""
MAIN_THREAD = "__monarch_main_thread__"
"""The attribute of such a class that holds its `MainThreadUse`, if it is not `first`."""


class ActorClass(msgspec.Struct, frozen=True):
    """An actor class that has been checked, with its endpoints."""

    cls: type[Actor]
    endpoints: dict[str, EndpointMethod[Any, Any]]
    is_async: bool

    @property
    def name(self) -> str:
        """The class's own name, or its label if it belongs to the runtime: see `endpoint_text`."""
        return vars(self.cls).get(LABEL) or self.cls.__name__


# The classes that were used last. The cache is bounded, since a notebook defines many classes.
_classes: dict[type, ActorClass] = {}
MAX_CLASSES = 256  # entries of `_classes`
# Bases that have no endpoints, and are not searched for them.
_without_endpoints = frozenset(Actor.__mro__)

# Each proc checks its actor classes as it starts, and its first write to a page is the largest cost
# (docs/explanation/performance.md). So only objects that are no plain functions are passed to
# `inspect`.
_YIELDS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _yields(function: Callable[..., Any]) -> bool:
    if type(function) is FunctionType:
        return bool(function.__code__.co_flags & _YIELDS)
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _is_async(function: Any) -> bool:
    # A function with attributes may be marked as a coroutine function.
    if type(function) is FunctionType and not vars(function):
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(function)


def _endpoints_of(cls: type) -> dict[str, EndpointMethod[Any, Any]]:
    found: dict[str, EndpointMethod[Any, Any]] = {}
    for base in reversed(cls.__mro__):
        own = vars(base)
        for name in [n for n in found if n in own]:
            del found[name]
        if base not in _without_endpoints:
            made: dict[str, Any] = {n: v for n, v in own.items() if isinstance(v, EndpointMethod)}
            found.update(made)
    return found


def forget_classes() -> None:
    """Empty the cache of checked classes."""
    _classes.clear()


def _as_async(method: EndpointMethod[Any, Any]) -> str:
    """The line that begins the method as `async def`."""
    return f"async def {method.name}{inspect.signature(method.function)}:"


def actor_class(cls: Any) -> ActorClass:
    """Check an actor class and list its endpoints.

    Raises:
        TypeError: `cls` is not a class.
        ValueError: the class breaks a rule of actor classes.
    """
    found = _classes.get(cls) if isinstance(cls, type) else None
    if found is not None and found.endpoints == _endpoints_of(cls):
        return found  # unchanged since it was checked
    if not isinstance(cls, type):
        raise TypeError(f"spawn needs a class derived from Actor, not {cls!r}")
    if not issubclass(cls, Actor):
        raise ValueError(f"{cls.__name__} is no actor: derive it from monarch.actor.Actor")
    endpoints = _endpoints_of(cls)
    for name in endpoints:
        if name in _reserved:
            raise ValueError(
                f"{cls.__name__}.{name}: a mesh of actors has its own {name!r}; rename the endpoint"
            )
    yields = [n for n, e in endpoints.items() if _yields(e.function)]
    if yields:
        raise ValueError(
            f"{cls.__name__}.{yields[0]} yields, and an endpoint answers once: return a list, or "
            "send each value through a port"
        )
    if cls.__init__ is not object.__init__ and _is_async(cls.__init__):
        raise ValueError(
            f"{cls.__name__}.__init__ is `async def`, which Python cannot await: do that in an "
            "endpoint, called first"
        )
    async_names = [n for n, e in endpoints.items() if e.is_async]
    sync_names = [n for n, e in endpoints.items() if not e.is_async]
    if async_names and sync_names:
        raise ValueError(
            f"{cls.__name__} mixes `async def` endpoints ({', '.join(async_names)}) with plain "
            f"ones ({', '.join(sync_names)}); make them all of one kind, as in:\n"
            f"    @endpoint\n    {_as_async(endpoints[sync_names[0]])}"
        )
    for hook in ("__cleanup__", "__supervise__", "_handle_undeliverable_message"):
        own = getattr(cls, hook, None)
        if not async_names and own is not getattr(Actor, hook, None) and _is_async(own):
            raise ValueError(
                f"{cls.__name__}.{hook} is `async def`, but its endpoints are plain: "
                "a sync actor has no loop to run it on"
            )
    found = ActorClass(cls, endpoints, bool(async_names))
    _classes[cls] = found
    if len(_classes) > MAX_CLASSES:
        _classes.pop(next(iter(_classes)), None)
    return found
