"""Flame graphs of the ranks of a mesh or of a slice."""

from __future__ import annotations

from monarch import observe
from monarch.actor import ActorMesh, ProcMesh
from monarch.observe import FlameGraph, StacksError
from monarch_jupyter.actions.stacks import select_procs
from monarch_jupyter.errors import CommandError


def flame(
    mesh: ProcMesh | ActorMesh | str | None = None,
    *,
    seconds: int = 5,
    rate: int = 100,
    threads: bool = False,
    native: bool = False,
) -> FlameGraph:
    """Sample the ranks of a mesh, of `"workers[gpus=0:4]"`, or of all meshes; takes `seconds`.

    See `monarch.observe.flame_graph`.

    Raises:
        CommandError: there is no such mesh, or this machine does not allow reading stacks.
    """
    found = select_procs(mesh, {}) if isinstance(mesh, str) else mesh
    try:
        return observe.flame_graph(
            found, seconds=seconds, rate=rate, threads=threads, native=native
        )  # fmt: skip
    except (StacksError, ValueError) as error:
        raise CommandError(str(error)) from None
