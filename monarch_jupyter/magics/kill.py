"""`%monarch kill`: end the processes of meshes at once."""

from __future__ import annotations

import sys

from monarch.actor import ProcMesh
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import complete_meshes, find_mesh, no_name
from monarch_jupyter.rendering.units import count


def kill(*meshes: ProcMesh | str) -> list[str]:
    """Kill the processes of these meshes; return their names once the processes have ended.

    Actors do not clean up; use `stop` for that.

    Raises:
        CommandError: no mesh is named, or one does not exist; then none is killed.
    """
    found = [find_mesh(mesh) if isinstance(mesh, str) else mesh for mesh in meshes]
    if not found:
        raise CommandError("kill needs a mesh; `%monarch kill workers`")
    for future in [mesh.kill("killed from the notebook") for mesh in found]:
        future.get()
    return [mesh.name for mesh in found]


def _run(invocation: Invocation) -> None:
    names = invocation.arguments.positionals
    if not names:
        raise no_name("kill", "the name of a mesh")
    found = [find_mesh(name, invocation.namespace) for name in names]
    sizes = [len(mesh) for mesh in found]
    for name, size in zip(kill(*found), sizes, strict=True):
        ended = count(size, "process was", "processes were")
        sys.stdout.write(f"killed {name}: its {ended} ended, no actor cleaned up\n")


COMMAND = Command(
    name="kill",
    usage="kill NAME ...",
    summary="kill the processes of meshes at once; `stop` lets actors clean up first",
    run=_run,
    complete=complete_meshes,
)
