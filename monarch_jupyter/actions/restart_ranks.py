"""Restart some ranks of a mesh, in their places."""

from __future__ import annotations

from collections.abc import Mapping

from monarch.frontend import call_target_of, is_label
from monarch_jupyter.errors import CommandError
from monarch_jupyter.meshes.registry import actors_on, find_mesh
from monarch_jupyter.meshes.selection import MeshSelection
from monarch_jupyter.rendering.units import count


def restart_ranks(selection: MeshSelection, namespace: Mapping[str, object]) -> str:
    """Restart these ranks, and wait until their actors are made; return lines about the result.

    The mesh, its variables, its actors and their handles stay, and so do the other ranks.

    Raises:
        CommandError: there is no such mesh, dim or rank; or its ranks cannot be restarted.
        SupervisionError: a process does not come up, or a constructor raises.
    """
    mesh = find_mesh(selection.name, namespace)
    selection.check(mesh.sizes)
    part = mesh.slice(**selection.dims)
    try:
        lost = part.restart().get()
    except (ValueError, RuntimeError) as error:
        if type(error) not in (ValueError, RuntimeError):
            raise
        raise CommandError(str(error)) from None
    made = [call_target_of(actors) for actors in actors_on(part)]
    names = dict.fromkeys(one.name for one in made if not is_label(one.class_name))
    actors = f", with its actors: {', '.join(names)}" if names else ""
    processes = count(len(part), "new process", "new processes")
    return "\n".join([f"restarted {selection}: {processes}{actors}", *lost])
