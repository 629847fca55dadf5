"""`patch_actor` and `patch_tensor_engine`: blocks in which actors of a class have a mock.

Runs in: the client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, TypeVar

from monarch._src.actor.endpoint import Actor, actor_class
from monarch._src.mesh.mock_registry import Factory, MockRegistry, actor_mocks, mesh_factories

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


class patch_actor(ClassPatch[type]):
    """Spawn `mock` wherever the program spawns `original`: `with patch_actor(Model, FakeModel):`.

    It holds for spawns within the block, controllers included, and for actors that such actors
    spawn. Actors that exist stay as they are. Processes that got an actor within the block go on
    spawning the mock. It is also an `async with`, and a decorator of functions, `async def` too.

    Args:
        original: an actor class.
        mock: the actor class to spawn. Its constructor gets the same arguments.

    Raises:
        TypeError: one of them is no actor class.
        ValueError: a class breaks a rule of actor classes.
    """

    def __init__(self, original: type[Actor], mock: type[Actor]) -> None:
        check_actor_class("patch_actor: original is", original)
        check_actor_class("patch_actor: mock is", mock)
        super().__init__(actor_mocks, original, mock)


def simulated_mesh(procs: Any) -> Any:
    """A mesh of a `monarch.simulator.Simulator` with the dims of these procs."""
    from monarch._src.tensor.simulation.simulator import Simulator

    return Simulator.with_dims(procs.sizes).mesh


class patch_tensor_engine(ClassPatch[Factory]):
    """Have actors of a class activate another mesh in place of their procs, in tests.

    with patch_tensor_engine(Trainer):
        run()          # where a Trainer activates procs, tensors have shapes and no values

    It holds for actors that are spawned within the block; they keep it. It is also an `async with`,
    and a decorator of functions, `async def` too.

    Args:
        actor_class: the class of the actors that call `procs.activate()`.
        mock_factory: gets the proc mesh and returns the mesh to activate, once for each mesh or
            slice of an actor. None: the mesh of a `Simulator` with the same dims.

    Raises:
        TypeError: `actor_class` is no actor class, or `mock_factory` cannot be called.
        ValueError: the class breaks a rule of actor classes.
    """

    def __init__(self, actor_class: type[Actor], mock_factory: Factory | None = None) -> None:
        check_actor_class("patch_tensor_engine takes", actor_class)
        if mock_factory is not None and not callable(mock_factory):
            raise TypeError(f"patch_tensor_engine: mock_factory={mock_factory!r} cannot be called")
        super().__init__(mesh_factories, actor_class, mock_factory or simulated_mesh)
