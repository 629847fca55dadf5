"""Lines of source where something went wrong, as a notebook shows them.

Reads source through `linecache`, and only shows lines around one that is still the line the frame
was taken of.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AROUND = 2
"""Lines shown before and after."""

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RANK_CELL = re.compile(r"<cell (?P<cell>.*)>\Z")

# The notebook's own name of a file that holds a cell, or None for any other file.
CellNames = Callable[[str], str | None]


@dataclass(frozen=True)
class Place:
    """One line of a program: where, in which function, and its text when it was run."""

    filename: str
    lineno: int
    name: str
    line: str

    @property
    def is_own(self) -> bool:
        """Whether this is the notebook's own machinery, which tells nothing of the program."""
        return self.filename.startswith(_OWN) or "/monarch_jupyter/" in self.filename


def rank_cell_filename(number: int, where: str) -> str:
    """What tracebacks call cell `number` when it runs on `where`."""
    return f"<cell In[{number}] on {where}>"


def rank_cell_mesh(filename: str) -> str | None:
    """The name of the mesh in what `rank_cell_filename` made; None for another file's name."""
    match = _RANK_CELL.match(filename)
    return match["cell"].partition(" on ")[2].partition("[")[0] if match else None


def place_lines(place: Place, cell_names: CellNames) -> list[str]:
    """`Cell In[3], line 7, in step`, then the source with an arrow at the line."""
    inside = "" if place.name == "<module>" else f", in {place.name}"
    return [
        f"{file_text(place.filename, cell_names)}, line {place.lineno}{inside}",
        *_source_lines(place),
    ]


def file_text(filename: str, cell_names: CellNames) -> str:
    cell = cell_names(filename)
    if cell is not None:
        return cell
    match = _RANK_CELL.match(filename)
    return f"Cell {match['cell']}" if match else f"File {filename}"


def _source_lines(place: Place) -> Sequence[str]:
    number = place.lineno
    here = linecache.getline(place.filename, number)
    if place.line and here.strip() != place.line.strip():
        # Another host's file, or edited since: only the line itself is known to be true.
        return [_arrow(number, place.line)]
    if not here:
        return []
    shown: list[str] = []
    for at in range(max(1, number - AROUND), number + AROUND + 1):
        text = linecache.getline(place.filename, at).rstrip("\n")
        if not linecache.getline(place.filename, at):
            break
        shown.append(_arrow(at, text) if at == number else f"{at:7d} {text}".rstrip())
    while shown and not shown[-1].strip(" 0123456789") and not shown[-1].startswith("-"):
        shown.pop()
    return shown


def _arrow(number: int, text: str) -> str:
    digits = str(number)
    return f"{'-' * (5 - len(digits))}> {digits} {text}".rstrip()
