"""`%monarch stop`: end meshes of processes or of actors, and free their resources."""

from __future__ import annotations

import sys

from monarch import frontend, observe
from monarch.actor import ActorMesh, ProcMesh
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import complete_endable, find_endable, no_name
from monarch_jupyter.rendering.units import count


def stop(*meshes: ProcMesh | ActorMesh | str, everything: bool = False) -> list[str]:
    """Stop meshes of processes or of actors, and wait until they have ended; return their names.

    With `everything`, all meshes of processes, and the actors on them.

    Raises:
        CommandError: no mesh is named, or one does not exist; then none is stopped.
    """
    found: list[ProcMesh | ActorMesh]
    if everything:
        found = [*observe.meshes()]
    else:
        found = [find_endable(mesh) if isinstance(mesh, str) else mesh for mesh in meshes]
        if not found:
            raise CommandError("stop needs a mesh, or --all")
    # All of them end at the same time.
    ending = [mesh.stop("stopped from the notebook") for mesh in found]
    for future in ending:
        future.get()
    return [_name(mesh) for mesh in found]


def _name(mesh: ProcMesh | ActorMesh) -> str:
    return frontend.call_target_of(mesh).name if isinstance(mesh, ActorMesh) else mesh.name


def _run(invocation: Invocation) -> None:
    names = invocation.arguments.positionals
    everything = invocation.arguments.has("--all")
    if everything and names:
        raise CommandError("stop takes names or --all, not both")
    if not everything and not names:
        raise no_name("stop", "the name of a mesh, or --all")
    found = (
        [*observe.meshes()]
        if everything
        else [find_endable(n, invocation.namespace) for n in names]
    )
    ended = [_ended(mesh) for mesh in found]
    stopped = stop(*found, everything=everything)
    if not stopped:
        sys.stdout.write("no meshes to stop\n")
    for name, what in zip(stopped, ended, strict=True):
        sys.stdout.write(f"stopped {name}: its {what} ended\n")


def _ended(mesh: ProcMesh | ActorMesh) -> str:
    if isinstance(mesh, ActorMesh):
        procs = frontend.call_target_of(mesh).procs.name
        return count(len(mesh), f"actor on {procs} has", f"actors on {procs} have")
    return count(len(mesh), "process has", "processes have")


COMMAND = Command(
    name="stop",
    usage="stop NAME ... | --all",
    summary="stop meshes of processes or of actors, and wait until they have ended",
    run=_run,
    options=(Option("--all", "every mesh of this kernel"),),
    complete=complete_endable,
)
