"""Meshes that actors of some classes activate in place of their procs, for tests.

Runs in: any process with actors; see `monarch.testing.patch_tensor_engine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from monarch._src.actor.context import current
from monarch._src.actor.runtime import runtime
from monarch._src.mesh.mock_registry import MockRegistry

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
