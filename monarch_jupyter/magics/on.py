"""`%%monarch on`: run a cell on the ranks of a mesh."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from monarch.actor import ValueMesh
from monarch_jupyter.actions.cell_data import CellData, names_in, seconds, variables
from monarch_jupyter.actions.run_cell import run_on
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import mesh_names
from monarch_jupyter.meshes.selection import parse_selection


def _run(invocation: Invocation) -> ValueMesh[object] | None:
    words = invocation.arguments.positionals
    if not words:
        raise CommandError("on needs a mesh; for example `%%monarch on workers[gpus=0:4]`")
    if invocation.cell is None:
        raise CommandError("on runs a whole cell: write %%monarch, and the code below it")
    arguments = invocation.arguments
    timeouts = arguments.values("--timeout")
    data = CellData(
        push=names_in("--push", arguments.values("--push")),
        scatter=names_in("--scatter", arguments.values("--scatter")),
        gather=names_in("--gather", arguments.values("--gather")),
        timeout=seconds("--timeout", timeouts[0]) if timeouts else None,
    )
    both = [name for name in data.push if name in data.scatter]
    if both:
        raise CommandError(f"--push and --scatter both have {both[0]}; choose one of them")
    selection = parse_selection(" ".join(words))
    if not invocation.cell.strip():
        raise CommandError(f"there is nothing to run on {selection}; write code below the line")
    return run_on(selection, invocation.namespace, invocation.cell, invocation.number, data)


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else mesh_names()


COMMAND = Command(
    name="on",
    usage="on MESH[dim=A:B, ...] [--push X,Y]",
    summary="run the cell on these ranks, in a namespace they keep; it has `rank` and `point`",
    run=_run,
    options=(
        Option(
            "--push",
            "binds these variables of the notebook on each rank first",
            "NAMES",
            repeated=True,
            complete=variables,
        ),
        Option(
            "--scatter",
            "cuts these into equal parts along their first axis, one a rank",
            "NAMES",
            repeated=True,
            complete=variables,
        ),
        Option(
            "--gather",
            "binds these in the notebook afterwards, each to its values by rank",
            "NAMES",
            repeated=True,
            complete=variables,
        ),
        Option("--timeout", "cancels the cell where it has not ended by then", "SECONDS"),
    ),
    examples=(
        "%%monarch on workers",
        "%%monarch on workers[gpus=0:4]",
        "%%monarch on workers --push model --scatter batch --gather loss",
    ),
    takes_cell=True,
    complete=_complete,
)
