"""`patch_tensor_engine`: actors of a class compute with tensors on a mesh without processes.

Runs in: the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from monarch._src.actor.endpoint import Actor
from monarch._src.mesh.mocked_tensors import Factory, mesh_factories
from monarch._src.testing.class_patch import ClassPatch, check_actor_class


def simulated_mesh(procs: Any) -> Any:
    """A mesh of a `monarch.simulator.Simulator` with the dims of these procs."""
    return import_module("monarch.simulator").Simulator.with_dims(procs.sizes).mesh


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
