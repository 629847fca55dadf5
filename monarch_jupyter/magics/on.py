"""`%%monarch on`: run a cell on the ranks of a mesh."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from monarch.actor import ValueMesh, WorkFuture
from monarch_jupyter.actions.cell_data import CellData, names_in, seconds, variables
from monarch_jupyter.actions.run_cell import RankCell, begin_on, run_on
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import mesh_names
from monarch_jupyter.meshes.selection import parse_selection


def _run(invocation: Invocation) -> ValueMesh[object] | WorkFuture[Any] | None:
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
    cell = RankCell(selection, invocation.namespace, invocation.cell, invocation.number, data)
    names = names_in("--out", arguments.values("--out"))
    if not arguments.has("--noblock"):
        if names:
            raise CommandError(f"--out {names[0]}: it binds the future of a cell with --noblock")
        return run_on(cell)
    future = begin_on(cell)
    invocation.namespace.update(dict.fromkeys(names, future))
    return future


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
        Option("--noblock", "returns a future at once; the cell goes on beside other cells"),
        Option("--out", "binds that future in the notebook", "NAME"),
        Option("--timeout", "cancels the cell where it has not ended by then", "SECONDS"),
    ),
    examples=(
        "%%monarch on workers",
        "%%monarch on workers[gpus=0:4]",
        "%%monarch on workers --push model --scatter batch --gather loss",
        "%%monarch on workers --noblock --out training",
    ),
    takes_cell=True,
    complete=_complete,
)
