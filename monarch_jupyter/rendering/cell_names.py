"""The notebook's names of the files that hold its cells.

Runs in: the kernel, any thread.
"""

from __future__ import annotations

import re

from monarch.debug import WaitingRank
from monarch.frontend import CodePlace
from monarch_jupyter.rendering.source_lines import CellNames, file_text

_FILE_AND_LINE = re.compile(r"(?P<file>[^\s()'\"]+\.py)\((?P<line>\d+)\)")
_known: CellNames | None = None


def share_cell_names(names: CellNames | None) -> None:
    """Use these names from now on; None: cells have no names, as without a notebook."""
    global _known
    _known = names


def cell_name(filename: str) -> str | None:
    """`Cell In[3]`; None for any other file."""
    return None if _known is None else _known(filename)


def place_text(place: CodePlace | WaitingRank) -> str:
    """`Trainer.step, Cell In[3], line 7`."""
    return f"{place.function}, {file_text(place.filename, cell_name)}, line {place.line}"


def with_cell_names(text: str) -> str:
    """Output of pdb, with `Cell In[3], line 7, ` in the place of the file of a cell."""

    def named(match: re.Match[str]) -> str:
        cell = cell_name(match["file"])
        return match[0] if cell is None else f"{cell}, line {match['line']}, in "

    return _FILE_AND_LINE.sub(named, text)
