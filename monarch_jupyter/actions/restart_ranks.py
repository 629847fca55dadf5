"""Restart some ranks of a mesh, in their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from monarch.actor import ProcMesh
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
    return restart_parts({str(selection): mesh.slice(**selection.dims)})


def restart_parts(parts: Mapping[str, ProcMesh]) -> str:
    """Restart slices of a mesh, by their texts, at the same time; return lines about the result.

    Raises:
        CommandError: the ranks of a slice cannot be restarted.
        SupervisionError: a process does not come up, or a constructor raises.
    """
    try:
        begun = {text: part.restart() for text, part in parts.items()}
        lost = {text: future.get() for text, future in begun.items()}
    except (ValueError, RuntimeError) as error:
        if type(error) not in (ValueError, RuntimeError):
            raise
        raise CommandError(str(error)) from None
    return "\n".join(line for text in parts for line in _lines(text, parts[text], lost[text]))


def _lines(text: str, part: ProcMesh, lost: Sequence[str]) -> Iterator[str]:
    made = [call_target_of(actors) for actors in actors_on(part)]
    names = dict.fromkeys(one.name for one in made if not is_label(one.class_name))
    actors = f", with its actors: {', '.join(names)}" if names else ""
    processes = count(len(part), "new process", "new processes")
    yield f"restarted {text}: {processes}{actors}"
    yield from lost
