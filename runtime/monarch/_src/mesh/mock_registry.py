"""The mocks that tests put in place of actor classes, by class; every spawn sends them along.

See `patch_actor` and `patch_tensor_engine` of `monarch.testing`.

Runs in: any process that spawns. A process that has received mocks goes on using them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from monarch._src.actor.context import current
from monarch._src.actor.runtime import runtime
from monarch._src.actor.serialize import pack_value

T = TypeVar("T")
_registries: list[MockRegistry[Any]] = []
# By the name of the registry, whose module a rank may import only later.
_received: dict[str, dict[type, Any]] = {}


class MockRegistry(Generic[T]):
    """The mocks of one kind in this process. `name`: the same in all processes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._set_here: dict[type, T] = {}
        self._received: dict[type, T] = _received.setdefault(name, {})
        _registries.append(self)

    def __bool__(self) -> bool:
        """Whether there is any mock."""
        return bool(self._set_here or self._received)

    def get(self, Class: type) -> T | None:
        """The mock of a class; None without one."""
        found = self._set_here.get(Class)
        return self._received.get(Class) if found is None else found

    def set(self, Class: type, mock: T | None) -> T | None:
        """Set the mock of a class here, or take it back (None); returns the one before."""
        before = self._set_here.pop(Class, None)
        if mock is not None:
            self._set_here[Class] = mock
        return before

    def __reduce__(self) -> tuple[Any, tuple[str, list[tuple[type, T]]]]:
        return _receive, (self._name, list(self._set_here.items()))

    def payload(self) -> list[bytes]:
        """The mocks that were set here, pickled; unpickling them sets them in another process."""
        return [bytes(pack_value(self).body)] if self._set_here else []


def _receive(name: str, mocks: list[tuple[type, Any]]) -> None:
    _received.setdefault(name, {}).update(mocks)


def mock_payloads() -> list[bytes]:
    """The mocks of all kinds, to go along with a spawn."""
    return [data for registry in _registries for data in registry.payload()]


C = TypeVar("C", bound=type)
actor_mocks = MockRegistry[type]("actors")


def mock_of(Class: C) -> C:
    """The class to spawn in place of that one: its mock, or itself."""
    found: Any = actor_mocks.get(Class) if actor_mocks else None
    return found or Class


Factory: TypeAlias = "Callable[[Any], Any]"  # takes a proc mesh, and returns the mesh to activate
mesh_factories = MockRegistry[Factory]("meshes of tensors")
# By actor, and by its meshes and slices: the mesh that the factory has made.
_made: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def mocked_mesh(procs: Any) -> Any:
    """The mesh that the running actor activates in place of these procs; None: the procs."""
    context = current.get() if mesh_factories else None
    if context is None:
        return None
    instance = context.actor_instance
    cell: Any = next((one for one in runtime().cells.values() if one.instance is instance), None)
    if cell is None or cell.actor_class is None:
        return None
    factory = mesh_factories.get(cell.actor_class.cls)
    if factory is None:
        return None
    made = _made.setdefault(cell, {})
    key = procs.uid, procs._region
    if key not in made:
        made[key] = factory(procs)
    return made[key]
