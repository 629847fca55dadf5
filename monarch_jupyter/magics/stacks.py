"""`%monarch stacks`: where ranks are in the program at this moment."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from monarch import observe
from monarch.actor import ActorMesh, ProcMesh
from monarch.observe import Stacks, StacksError
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import find_mesh, mesh_names
from monarch_jupyter.meshes.selection import parse_selection


def stacks(
    mesh: ProcMesh | ActorMesh | str | None = None, *, full: bool = False, idle: bool = False
) -> Stacks:
    """Where the ranks of a mesh, or of all, are in the program; `"workers[gpus=0:4]"` for some.

    `full`: with all threads and the frames of the runtime; `idle`: also of ranks that say that
    they are idle.

    Raises:
        CommandError: there is no such mesh, or this machine lets nobody look.
    """
    found = _select(mesh, {}) if isinstance(mesh, str) else mesh
    try:
        return observe.stacks(found, full=full, idle=idle)
    except StacksError as error:
        raise CommandError(str(error)) from None


def _select(text: str, namespace: MutableMapping[str, object]) -> ProcMesh:
    selection = parse_selection(text)
    mesh = find_mesh(selection.name, namespace)
    selection.check(mesh.sizes)
    return mesh.slice(**selection.dims) if selection.dims else mesh


def _run(invocation: Invocation) -> Stacks:
    names = invocation.arguments.positionals
    if len(names) > 1:
        raise CommandError("stacks takes one mesh or slice, or none for all of them")
    mesh = _select(names[0], invocation.namespace) if names else None
    options = invocation.arguments
    return stacks(mesh, full=options.has("--full"), idle=options.has("--idle"))


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else mesh_names()


COMMAND = Command(
    name="stacks",
    usage="stacks [NAME[dim=0:4]]",
    summary="where ranks are in the program now, the odd ones named; finds the one that hangs",
    run=_run,
    options=(
        Option("--full", "all threads, with the frames of the runtime"),
        Option("--idle", "look also into ranks that say that they are idle"),
    ),
    examples=("%monarch stacks", "%monarch stacks workers[gpus=0:4]"),
    complete=_complete,
)
