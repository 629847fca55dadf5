"""`%%monarch on`: run a cell on the ranks of a mesh."""

from __future__ import annotations

import linecache
from collections.abc import MutableMapping, Sequence
from typing import cast

from monarch.actor import ActorMesh, ProcMesh, SupervisionError, ValueMesh
from monarch_jupyter.cell_runner import Cell, split_cell
from monarch_jupyter.commands.command import Command, Invocation
from monarch_jupyter.mesh_selection import MeshSelection, parse_selection
from monarch_jupyter.problems import CommandError
from monarch_jupyter.registry import find_mesh, mesh_names
from monarch_jupyter.rendering.frames import rank_cell_filename

ACTOR_NAME = "cells"

# By uid of a mesh and selection: actors that run cells. Those of the whole mesh, under "",
# serve every part of it; others are there only where a rank had died before the first cell.
_cells: dict[tuple[str, str], ActorMesh] = {}
_counted = 0


def on(mesh: ProcMesh | str, source: str, *, number: int | None = None) -> ValueMesh[object] | None:
    """Run `source` on every rank of a mesh, or of `"workers[gpus=0:4]"`, and wait for all of them.

    It runs in a namespace that the ranks keep for later cells; `rank` and `point` are there.
    Returns the values of its last line, by rank, or None where that is no expression, ends in `;`,
    or is None everywhere. `number` is what tracebacks call the cell.

    Raises:
        CommandError: there is no such mesh, dim or rank.
        SyntaxError: the source is no Python; nothing has run then.
        ActorError: it raised on some rank; the ranks live on.
    """
    global _counted
    _counted += 1
    number = _counted if number is None else number
    if isinstance(mesh, str):
        return _run_on(parse_selection(mesh), {}, source, number)
    return _run_on(MeshSelection(mesh.name, {}), {mesh.name: mesh}, source, number)


def _run_on(
    selection: MeshSelection, namespace: MutableMapping[str, object], cell: str, number: int
) -> ValueMesh[object] | None:
    mesh = find_mesh(selection.name, namespace)
    _check_whole(mesh, selection.name)
    selection.check(mesh.sizes)
    filename = rank_cell_filename(number, str(selection))
    # The magic's own line stays in, so that line numbers are those the cell shows.
    source = f"# %%monarch on {selection}\n{cell}"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    split_cell(source, filename)
    cells = _cells_on(mesh, selection)
    values: ValueMesh[object] = cells.run.call(source, filename).get()
    return None if all(value is None for value in values.values()) else values


def _check_whole(mesh: ProcMesh, name: str) -> None:
    whole = find_mesh(mesh.name)
    if mesh.extent != whole.extent:
        raise CommandError(
            f"{name} is a slice of {mesh.name}; name the ranks instead, as in "
            f"`%%monarch on {mesh.name}[{next(iter(whole.sizes))}=0:{len(mesh)}]`"
        )


def _cells_on(mesh: ProcMesh, selection: MeshSelection) -> ActorMesh:
    """The actors that run cells on these ranks, spawned with the first cell."""
    whole = _cells.get((mesh.uid, ""))
    if whole is None:
        try:
            whole = _spawn_cells(mesh, MeshSelection(mesh.name, {}))
        except SupervisionError:
            # Some rank has died. The others can still be asked, if the selection leaves it out.
            if not selection.dims:
                raise
            part = _cells.get((mesh.uid, str(selection)))
            return part or _spawn_cells(mesh, selection)
    return whole.slice(**selection.dims) if selection.dims else whole


def _spawn_cells(mesh: ProcMesh, selection: MeshSelection) -> ActorMesh:
    ranks = ValueMesh(mesh.extent, range(len(mesh)))
    place = ranks.slice(**selection.dims) if selection.dims else ranks
    procs = mesh.slice(**selection.dims) if selection.dims else mesh
    spawned = procs.spawn(ACTOR_NAME, Cell, mesh.extent, place.values())
    key = (mesh.uid, str(selection) if selection.dims else "")
    _cells[key] = cast("ActorMesh", spawned)
    return _cells[key]


def _run(invocation: Invocation) -> ValueMesh[object] | None:
    words = invocation.arguments.positionals
    if not words:
        raise CommandError("on needs a mesh; for example `%%monarch on workers[gpus=0:4]`")
    if invocation.cell is None:
        raise CommandError("on runs a whole cell: write %%monarch, and the code below it")
    selection = parse_selection(" ".join(words))
    if not invocation.cell.strip():
        raise CommandError(f"there is nothing to run on {selection}; write code below the line")
    return _run_on(selection, invocation.namespace, invocation.cell, invocation.number)


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
