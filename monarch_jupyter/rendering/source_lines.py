"""Source lines of failures, as a notebook shows them.

Source is read through `linecache`; the lines around a frame are shown only if the frame's own line
is unchanged.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from monarch_jupyter.rendering.units import count

AROUND = 2
"""Lines shown before and after."""
FIRST, LAST = 4, 6
"""Frames shown of very many."""

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RANK_CELL = re.compile(r"<cell (?P<cell>.*)>\Z")
_FILE_AND_LINE = re.compile(r"(?P<file>[^\s()'\"<>]+\.py|<cell [^<>]+>):(?P<line>\d+)")
_MAGIC = re.compile(
    r"get_ipython\(\)\.run_(?P<kind>cell|line)_magic\('(?P<name>[^']*)', "
    r"(?P<quote>['\"])(?P<words>.*?)(?<!\\)(?P=quote)[,)]"
)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/([^/]+?)(?:\.py)?(?:/|\Z)")
_OF_PYTHON = re.compile(r"(?:/lib/python3\.\d+/|<frozen )([^/.>]+)")

# The notebook's own name of a file that holds a cell, or None for any other file.
CellNames = Callable[[str], str | None]


@dataclass(frozen=True)
class ProgramLine:
    """One line of a program: where, in which function, and its text when it was run."""

    filename: str
    lineno: int
    name: str
    line: str

    @property
    def is_own(self) -> bool:
        """Whether this is code of the notebook extension and not of the program."""
        return self.filename.startswith(_OWN) or "/monarch_jupyter/" in self.filename

    @property
    def magic(self) -> str | None:
        """The magic of which IPython has made this line; None if the user has written the line."""
        match = _MAGIC.search(self.line)
        if match is None:
            return None
        marks = "%%" if match["kind"] == "cell" else "%"
        return f"{marks}{match['name']} {match['words']}".rstrip()

    @property
    def library(self) -> str | None:
        """The installed package or the Python module of this place; None for the program itself."""
        match = _INSTALLED.search(self.filename) or _OF_PYTHON.search(self.filename)
        return match[1] if match else None


def rank_cell_filename(number: int, where: str) -> str:
    """The name in tracebacks of cell `number` when it runs on `where`."""
    return f"<cell In[{number}] on {where}>"


def rank_cell_mesh(filename: str) -> str | None:
    """The name of the mesh in a name from `rank_cell_filename`; None for any other file."""
    selection = rank_cell_selection(filename)
    return None if selection is None else selection.partition("[")[0]


def rank_cell_selection(filename: str) -> str | None:
    """The mesh or slice in a name from `rank_cell_filename`; None for any other file."""
    match = _RANK_CELL.match(filename)
    return match["cell"].partition(" on ")[2] if match else None


def place_lines(place: ProgramLine, cell_names: CellNames) -> list[str]:
    """`Cell In[3], line 7, in step`, then the source with an arrow at the line."""
    inside = "" if place.name == "<module>" else f", in {place.name}"
    return [
        f"{file_text(place.filename, cell_names)}, line {place.lineno}{inside}",
        *_source_lines(place),
    ]


def story_lines(places: Sequence[ProgramLine], cell_names: CellNames) -> list[str]:
    """A traceback: the frames of the program, and the last frame if it is in a library.

    If no frame is of the program, all are shown. Of very many frames, as in an endless recursion,
    only both ends are shown.
    """
    runs = [(of_library, list(run)) for of_library, run in groupby(places, _is_of_library)]
    lines: list[str] = []
    if len(runs) > 1 and runs[0][0]:
        del runs[0]  # the caller of the program, such as an event loop
    for run_at, (of_library, run) in enumerate(runs):
        left_out = len(run) - (run_at == len(runs) - 1) if of_library and len(runs) > 1 else 0
        if left_out:
            libraries = dict.fromkeys(place.library for place in run[:left_out])
            lines.append(f"... {count(left_out, 'frame')} of {', '.join(map(str, libraries))} ...")
        lines += _run_lines(run[left_out:], cell_names)
    return lines


def _run_lines(run: Sequence[ProgramLine], cell_names: CellNames) -> list[str]:
    """Frames in order: a repeated frame once, and of very many frames both ends."""
    calls = [(place, len(list(same))) for place, same in groupby(run)]
    beyond = len(calls) - FIRST - LAST
    lines: list[str] = []
    for at, (place, times) in enumerate(calls):
        if beyond > 0 and FIRST <= at < FIRST + beyond:
            if at == FIRST:
                lines.append(f"... {count(beyond, 'more frame')} ...")
            continue
        lines += place_lines(place, cell_names)
        if times > 1:
            lines.append(f"... the same {count(times - 1, 'more time')} ...")
    return lines


def _is_of_library(place: ProgramLine) -> bool:
    return place.library is not None


def file_text(filename: str, cell_names: CellNames) -> str:
    cell = cell_names(filename)
    if cell is not None:
        return cell
    match = _RANK_CELL.match(filename)
    return f"Cell {match['cell']}" if match else f"File {filename}"


def with_cells(text: str, cell_names: CellNames) -> str:
    """The text, with `Cell In[3], line 7` in place of the file and line of a cell."""

    def named(match: re.Match[str]) -> str:
        shown = file_text(match["file"], cell_names)
        is_cell = not shown.startswith("File ")
        return f"{shown}, line {match['line']}" if is_cell else match[0]

    return _FILE_AND_LINE.sub(named, text)


def _source_lines(place: ProgramLine) -> Sequence[str]:
    number = place.lineno
    here = linecache.getline(place.filename, number)
    if place.line and here.strip() != place.line.strip():
        # A file of another host, or edited since: only the line itself is known.
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
