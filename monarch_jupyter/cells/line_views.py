"""Lines of an ended cell behind a click: rank by rank, or folded once more.

Runs in: the kernel, on the output thread.
"""

from __future__ import annotations

from monarch.frontend import OutputFolder
from monarch.observe import OutputLine
from monarch_jupyter.cells.registry import Cells
from monarch_jupyter.lines.log_store import LogStore
from monarch_jupyter.rendering.lines import (
    MOST_UNFOLDED,
    folded_again_html,
    folded_again_text,
    unfolded_html,
    unfolded_text,
)

MOST_LINES = 20_000
"""Lines that are folded once more; more of them would hold up the output of the next cell."""
MOST_FOLDS = 1_000
"""Folded lines that a page gets; the view of all lines has the others."""


def show_unfolded(cells: Cells, store: LogStore, origin: int) -> None:
    """Put the lines of a cell below them, rank by rank, behind a click."""
    page = store.page(None, cell=origin, page=1, length=MOST_UNFOLDED)
    if page.lines:
        bundle = {"text/plain": unfolded_text(page), "text/html": str(unfolded_html(page))}
        cells.put("unfolded", bundle, origin)


def show_folded_again(cells: Cells, store: LogStore, origin: int) -> None:
    """Put all lines of a cell below its first ones, equal lines of different ranks as one.

    While a cell runs, a line waits only a moment for its like, and ranks that drift apart write
    the same lines at different times. Now that all lines are known, none has to wait.
    """
    page = store.page(None, cell=origin, page=1, length=MOST_LINES)
    if page.total > MOST_LINES:
        return
    folder = OutputFolder()
    folder.add(
        OutputLine(line.mesh, line.mesh_uid, line.rank, line.point, line.stream, line.text, origin)
        for line in page.lines
    )
    folds = folder.take_all()
    if len(folds) > MOST_FOLDS or len(folds) == page.total:
        return
    bundle = {
        "text/plain": folded_again_text(page, folds),
        "text/html": str(folded_again_html(page, folds)),
    }
    cells.put("folded again", bundle, origin)
