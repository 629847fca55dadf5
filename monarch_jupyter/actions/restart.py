"""Spawn a mesh again that has lost ranks, with the options of its first spawn."""

from __future__ import annotations

from collections.abc import MutableMapping

from monarch.actor import ProcMesh
from monarch_jupyter.actions.spawn import spawn_request
from monarch_jupyter.errors import CommandError
from monarch_jupyter.meshes.registry import as_spawned, find_mesh
from monarch_jupyter.meshes.spawn_requests import request_of
from monarch_jupyter.rendering.units import count


def restart(mesh: ProcMesh, namespace: MutableMapping[str, object]) -> str:
    """End a mesh and spawn it again; return one line about the result.

    Variables of the notebook that hold the whole mesh hold the new one. Its actors are gone, since
    the kernel has neither their classes nor their arguments.

    Raises:
        CommandError: the mesh was not spawned by `%monarch spawn` or the side panel; it goes on.
        SupervisionError: a new process didn't start.
    """
    request = request_of(mesh)
    if request is None:
        raise CommandError(
            f"{mesh.name} was spawned by code, whose options this kernel does not know; stop it, "
            "and run that cell again"
        )
    if request.keep:
        raise CommandError(
            f"{mesh.name} is kept, under a name that stays taken until it has ended: "
            f"`%monarch stop {mesh.name}`, then spawn it again"
        )
    actors = mesh.actor_names
    names = [name for name, value in list(namespace.items()) if _is_whole(value, mesh)]
    mesh.stop("restarted from the notebook").get()
    new = spawn_request(request)
    for name in dict.fromkeys([*names, request.name]):
        namespace[name] = new
    gone = f"; spawn its actors again: {', '.join(actors)}" if actors else ""
    return f"restarted {request.name}: {count(len(new), 'new process', 'new processes')}{gone}"


def _is_whole(value: object, mesh: ProcMesh) -> bool:
    return isinstance(value, ProcMesh) and value.uid == mesh.uid and len(value) == len(mesh)


def restart_named(name: str, namespace: MutableMapping[str, object]) -> str:
    """As `restart`, of the mesh of that name, whichever slice of it a variable holds.

    Raises:
        CommandError: there is no such mesh; as `restart` otherwise.
    """
    return restart(as_spawned(find_mesh(name, namespace)), namespace)
