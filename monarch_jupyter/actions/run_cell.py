"""Run a cell on the ranks of a mesh."""

from __future__ import annotations

import linecache
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import cast

from monarch import frontend, observe
from monarch.actor import (
    ActorError,
    ActorMesh,
    Future,
    MeshStoppedError,
    ProcMesh,
    SupervisionError,
    ValueMesh,
    WorkFuture,
)
from monarch.frontend import name_ranks
from monarch_jupyter.actions.cell_data import CellData, seconds
from monarch_jupyter.actions.rank_syntax import REFUSED, python_of
from monarch_jupyter.cells.displays import shared_displays
from monarch_jupyter.cells.output import shared_output
from monarch_jupyter.errors import CommandError
from monarch_jupyter.meshes.registry import as_spawned, find_mesh, places_of
from monarch_jupyter.meshes.selection import MeshSelection, parse_selection
from monarch_jupyter.ranks.cell_runner import Cell, split_cell
from monarch_jupyter.rendering.failures import headline
from monarch_jupyter.rendering.source_lines import rank_cell_filename
from monarch_jupyter.rendering.units import duration
from monarch_jupyter.rendering.values import readable_values

ACTOR_NAME = "cells"
_NO_DATA = CellData()

# By uid of a mesh and selection: actors that run cells. Those of the whole mesh, under "",
# serve every part of it; others are there only where a rank had died before the first cell.
_cells: dict[tuple[str, str], ActorMesh] = {}
_counted = 0


def on(
    mesh: ProcMesh | str, source: str, *, number: int | None = None, timeout: float | None = None
) -> ValueMesh[object] | None:
    """Run `source` on every rank of a mesh, or of `"workers[gpus=0:4]"`, and wait for all of them.

    The source runs in a namespace that the ranks keep for later cells; it has `rank` and `point`,
    and names that `ProcMesh.push` has bound. Returns the values of the last line by rank, or None
    if that line is not an expression, ends in `;`, or is None everywhere. Tracebacks call the cell
    by `number`. After `timeout` seconds it is cancelled on the ranks that still run it.

    Raises:
        CommandError: there is no such mesh, dim or rank.
        SyntaxError: the source is not valid Python; nothing has run.
        ActorError: the source raised on some rank; the ranks live on.
    """
    global _counted
    _counted += 1
    number = _counted if number is None else number
    data = CellData(timeout=None if timeout is None else seconds("timeout", timeout))
    if isinstance(mesh, str):
        return run_on(RankCell(parse_selection(mesh), {}, source, number, data))
    selection = MeshSelection(mesh.name, {})
    return run_on(RankCell(selection, {mesh.name: mesh}, source, number, data))


@dataclass(frozen=True)
class RankCell:
    """A cell to run on ranks: its text, the ranks, the notebook's variables, what to send along.

    `number`: the cell's execution count. `headed`: whether the notebook shows the line of a magic
    above `text`, which errors of ranks then count as line 1.
    """

    selection: MeshSelection
    namespace: MutableMapping[str, object]
    text: str
    number: int
    data: CellData = _NO_DATA
    headed: bool = True

    @property
    def source(self) -> str:
        """The text with the numbers of lines that the notebook shows."""
        return f"# %%monarch on {self.selection}\n{self.text}" if self.headed else self.text


def run_on(cell: RankCell) -> ValueMesh[object] | None:
    """Run a cell on its ranks, and wait for all of them."""
    return _begin_on(cell).wait()


def begin_on(cell: RankCell) -> WorkFuture[ValueMesh[object] | None]:
    """Begin a cell as `run_on` does; a line in the calling cell tells its end."""
    begun = _begin_on(cell)
    output = shared_output()
    origin = None if output is None else output.origin_now()
    began = time.monotonic()

    def work() -> ValueMesh[object] | None:
        try:
            values = begun.wait()
        except BaseException as error:
            if output is not None:
                output.say(ended_text(cell.selection, time.monotonic() - began, error), origin)
            raise
        if output is not None:
            output.advise(ended_text(cell.selection, time.monotonic() - began, None), origin)
        return values

    return frontend.work_beside(begun.mesh, "cell", begun.called, work)


@dataclass(frozen=True)
class _BegunCell:
    """A cell that runs on the ranks of `part`, and the call that runs it."""

    cell: RankCell
    mesh: ProcMesh
    part: ProcMesh
    called: Future[ValueMesh[object]]

    def wait(self) -> ValueMesh[object] | None:
        """The values of the cell, once all ranks have run it."""
        displays = shared_displays()
        data = self.cell.data
        try:
            values = _answer(self.called, self.cell.selection, data.timeout)
        finally:
            if displays is not None:
                displays.flush()
        data.fetch(self.part, self.cell.namespace)
        return None if all(value is None for value in readable_values(values)) else values


def ended_text(selection: MeshSelection, seconds: float, error: BaseException | None) -> str:
    """The line that tells the end of a cell with --noblock."""
    what, after = f"monarch: the cell on {selection}", duration(float(round(seconds)))
    if error is None:
        return f"{what} is done after {after}"
    lines = [str(error)]
    if isinstance(error, ActorError | SupervisionError) and error.failures:
        groups = frontend.failures_by_place(error.failures)
        lines = [line for group in groups for line in headline(group)]
    said = "; ".join(" ".join(line.split()) for line in lines)
    return f"{what} has failed after {after}: {said}"


def _begin_on(cell: RankCell) -> _BegunCell:
    selection = cell.selection
    mesh = find_mesh(selection.name, cell.namespace)
    selection.check(mesh.sizes)
    # Ranks have the coordinates of the spawned mesh, so errors must name them by these too.
    unchanged = mesh.extent == as_spawned(mesh).extent and not mesh.is_slice
    filename = rank_cell_filename(cell.number, str(selection) if unchanged else mesh.name)
    source = cell.source
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        code = python_of(source, filename, above=1 if cell.headed else 0)
        split_cell(code, filename)
    except SyntaxError as error:
        if error.lineno is not None and error.lineno <= len(lines := source.splitlines()):
            error.text = lines[error.lineno - 1]  # as the user wrote it
        if not cell.headed and REFUSED in error.msg:
            error.msg += "; after `%monarch autopx off` cells run in the notebook"
        raise
    frontend.note_imports_in(code)
    part = mesh.slice(**selection.dims) if selection.dims else mesh
    cell.data.send(part, cell.namespace)
    cells = _cells_on(mesh, selection)
    called = cells.run.call(code, filename, None if code == source else source)
    return _BegunCell(cell, mesh, part, called)


def _answer(
    future: Future[ValueMesh[object]], selection: MeshSelection, timeout: float | None
) -> ValueMesh[object]:
    """The values of the cell.

    Raises:
        CommandError: some ranks have not run it in time; they were told to cancel it.
    """
    try:
        return future.get(timeout)
    except TimeoutError:
        call = observe.call_of(future)
        if call is None or not call.owing:
            raise
        observe.cancel_calls([call])
        where = name_ranks(call.owing) or "its one rank"
        raise CommandError(
            f"the cell has not ended within {timeout:g} s on {where} of {selection.name}, and is "
            "cancelled there"
        ) from None


def _cells_on(mesh: ProcMesh, selection: MeshSelection) -> ActorMesh:
    """The actors that run cells on these ranks, spawned with the first cell."""
    spawned = as_spawned(mesh)
    whole = _cells.get((mesh.uid, ""))
    if whole is None or _is_stopped(whole):
        try:
            whole = _cells[mesh.uid, ""] = _spawn_cells(spawned, spawned, MeshSelection("", {}))
        except SupervisionError:
            # Some rank has died. The others can still run cells, if the selection leaves it out.
            if not (selection.dims or mesh.is_slice):
                raise
            key = (mesh.uid, f"{sorted(places_of(spawned, mesh).values())} {selection}")
            if key not in _cells or _is_stopped(_cells[key]):
                _cells[key] = _spawn_cells(spawned, mesh, selection)
            return _cells[key]
    viewed = frontend.as_viewed(whole, mesh)
    return viewed.slice(**selection.dims) if selection.dims else viewed


def _is_stopped(cells: ActorMesh) -> bool:
    """Whether `%monarch stop cells` has ended them, so that the next cell needs others."""
    try:
        frontend.call_target_of(cells).check_usable()
    except MeshStoppedError:
        return True
    return False


def adopt_cells(mesh: ActorMesh) -> None:
    """Use the cell-running actors of another kernel; they keep the names that its cells bound."""
    target = frontend.call_target_of(mesh)
    whole = next((one for one in observe.meshes() if int(one.uid, 16) == target.procs.uid), None)
    if target.name == ACTOR_NAME and whole is not None and len(mesh) == len(whole):
        _cells[(whole.uid, "")] = mesh


def _spawn_cells(spawned: ProcMesh, mesh: ProcMesh, selection: MeshSelection) -> ActorMesh:
    ranks = places_of(spawned, mesh)
    procs = mesh
    if selection.dims:
        ranks, procs = ranks.slice(**selection.dims), mesh.slice(**selection.dims)
    cells = procs.spawn(ACTOR_NAME, Cell, spawned.extent, list(ranks.values()))
    return cast("ActorMesh", cells)
