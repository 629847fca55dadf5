"""The processes that a mesh or slice stands for. No I/O."""

from __future__ import annotations

from typing import Any, TypeVar

from monarch._src.actor.endpoint import Actor
from monarch._src.mesh.actor_mesh import ActorMesh, call_target_of
from monarch._src.mesh.meshes import ProcMesh, shared_procs
from monarch._src.shape import ValueMesh
from monarch._src.shape.coordinates import Coordinates, coordinates_of

M = TypeVar("M", ActorMesh, ValueMesh[int])


def as_viewed(whole: M, procs: ProcMesh) -> M:
    """Actors or values of all ranks of a mesh, sliced as `procs` is: its ranks, under its dims.

    `whole` has an entry for each rank that was spawned together, in the order of ranks.
    """
    return whole._new_with_region(procs._region)  # pyright: ignore[reportPrivateUsage]


def coordinates(mesh: ProcMesh | ActorMesh | ValueMesh[Any]) -> Coordinates:
    """Where the ranks of a slice are in the mesh of processes that was spawned; see `Coordinates`.

    For a mesh of values, where the values came from.
    """
    if isinstance(mesh, ValueMesh):
        return mesh._coordinates()  # pyright: ignore[reportPrivateUsage]
    if isinstance(mesh, ActorMesh):
        spawned = call_target_of(mesh).procs.extent
    else:
        spawned = shared_procs(mesh).region.extent
    return coordinates_of(mesh.sizes, mesh._region.ranks(), spawned)  # pyright: ignore[reportPrivateUsage]


def procs_of(mesh: ProcMesh | ActorMesh | Actor) -> tuple[int, list[int]]:
    """The uid of the proc mesh and the ranks in it. TypeError if `mesh` is neither kind of mesh."""
    if isinstance(mesh, ActorMesh):
        target = call_target_of(mesh)
        return target.procs.uid, list(target.region.ranks())
    if isinstance(mesh, ProcMesh):
        region = mesh._region  # pyright: ignore[reportPrivateUsage]
        return int(mesh.uid, 16), list(region.ranks())
    raise TypeError(f"{mesh!r} is not a mesh of procs or actors; give one, or a slice of one")
