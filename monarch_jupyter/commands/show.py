"""`%monarch show`: the mesh explorer."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING

from monarch.actor import ProcMesh
from monarch_jupyter.commands.command import Command, Invocation
from monarch_jupyter.problems import CommandError
from monarch_jupyter.publishing import shared_publisher
from monarch_jupyter.registry import find_mesh, mesh_names

if TYPE_CHECKING:
    from monarch_jupyter.widgets.explorer import Explorer


def show(mesh: ProcMesh | str | None = None) -> Explorer:
    """A live view of one mesh, or of all; it updates while cells run.

    Raises:
        CommandError: there is no such mesh.
    """
    # Widgets are heavy and only a kernel has them; procs import this package without.
    from monarch_jupyter.widgets.explorer import Explorer

    found = find_mesh(mesh) if isinstance(mesh, str) else mesh
    return Explorer(shared_publisher(), only=found.uid if found else "")


def _run(invocation: Invocation) -> Explorer:
    names = invocation.arguments.positionals
    if len(names) > 1:
        raise CommandError("show takes one mesh, or none for all of them")
    return show(find_mesh(names[0], invocation.namespace) if names else None)


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else mesh_names()


COMMAND = Command(
    name="show",
    usage="show [NAME]",
    summary="a live view of the ranks of one mesh, or of all",
    run=_run,
    complete=_complete,
)
