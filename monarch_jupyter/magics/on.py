"""`%%monarch on`: run a cell on the ranks of a mesh."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from monarch.actor import ValueMesh
from monarch_jupyter.actions.run_cell import run_on
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import mesh_names
from monarch_jupyter.meshes.selection import parse_selection


def _run(invocation: Invocation) -> ValueMesh[object] | None:
    words = invocation.arguments.positionals
    if not words:
        raise CommandError("on needs a mesh; for example `%%monarch on workers[gpus=0:4]`")
    if invocation.cell is None:
        raise CommandError("on runs a whole cell: write %%monarch, and the code below it")
    selection = parse_selection(" ".join(words))
    if not invocation.cell.strip():
        raise CommandError(f"there is nothing to run on {selection}; write code below the line")
    return run_on(selection, invocation.namespace, invocation.cell, invocation.number)


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else mesh_names()


COMMAND = Command(
    name="on",
    usage="on MESH[dim=A:B, ...]",
    summary="run the cell on these ranks, in a namespace they keep; it has `rank` and `point`",
    run=_run,
    examples=("%%monarch on workers", "%%monarch on workers[gpus=0:4]"),
    takes_cell=True,
    complete=_complete,
)
