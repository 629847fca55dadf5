"""`%monarch stop`: end meshes and free their resources."""

from __future__ import annotations

import sys

from monarch import observe
from monarch.actor import ProcMesh
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import complete_meshes, find_mesh, no_name
from monarch_jupyter.rendering.units import count


def stop(*meshes: ProcMesh | str, everything: bool = False) -> list[str]:
    """Stop the meshes, or all, and wait until their processes have ended; return their names.

    Raises:
        CommandError: no mesh is named, or one does not exist; then none is stopped.
    """
    if everything:
        found = observe.meshes()
    else:
        found = [find_mesh(mesh) if isinstance(mesh, str) else mesh for mesh in meshes]
        if not found:
            raise CommandError("stop needs a mesh, or --all")
    # All of them end at the same time.
    ending = [mesh.stop("stopped from the notebook") for mesh in found]
    for future in ending:
        future.get()
    return [mesh.name for mesh in found]


def _run(invocation: Invocation) -> None:
    names = invocation.arguments.positionals
    everything = invocation.arguments.has("--all")
    if everything and names:
        raise CommandError("stop takes names or --all, not both")
    if not everything and not names:
        raise no_name("stop", "the name of a mesh, or --all")
    found = observe.meshes() if everything else [find_mesh(n, invocation.namespace) for n in names]
    sizes = [len(mesh) for mesh in found]
    stopped = stop(*found, everything=everything)
    if not stopped:
        sys.stdout.write("no meshes to stop\n")
    for name, size in zip(stopped, sizes, strict=True):
        ended = count(size, "process has", "processes have")
        sys.stdout.write(f"stopped {name}: its {ended} ended\n")


COMMAND = Command(
    name="stop",
    usage="stop NAME ... | --all",
    summary="stop meshes and wait until their processes have ended",
    run=_run,
    options=(Option("--all", "every mesh of this kernel"),),
    complete=complete_meshes,
)
