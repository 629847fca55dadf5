"""A block in which actors of a class have a mock. Runs in: the client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, TypeVar

from monarch._src.actor.endpoint import Actor, actor_class
from monarch._src.mesh.mock_registry import MockRegistry

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")


class ClassPatch(Generic[T]):
    """Sets the mock of a class for a block: `with`, `async with`, or a decorator."""

    def __init__(self, registry: MockRegistry[T], Class: type[Actor], mock: T) -> None:
        self._registry = registry
        self._class = Class
        self._mock = mock
        self._before: list[T | None] = []

    def __enter__(self) -> T:
        """Begin; returns the mock."""
        self._before.append(self._registry.set(self._class, self._mock))
        return self._mock

    def __exit__(self, *_: object) -> None:
        self._registry.set(self._class, self._before.pop())

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def __call__(self, function: F) -> F:
        """The function, with the mock for the time of each call."""

        @wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        @wraps(function)
        async def patched_async(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        found: Any = patched_async if inspect.iscoroutinefunction(function) else patched
        return found


def check_actor_class(name: str, Class: Any) -> None:
    """Check an argument of a patch.

    Raises:
        TypeError: it is no actor class. ValueError: it breaks a rule of actor classes.
    """
    if not isinstance(Class, type) or not issubclass(Class, Actor):
        raise TypeError(f"{name} an actor class, not {Class!r}")
    actor_class(Class)
