"""Render lines with carriage returns, such as progress bars, as a terminal does. No I/O."""

from __future__ import annotations

import re

# Cursor moves and screen clearing make no sense between the lines of other ranks; colours do.
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhlsu]")
_ERASE_LINE = re.compile(r"\x1b\[[0-2]?K")
_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")


def shown(line: str) -> str:
    """The final state of a line that was overwritten with `\r`, as a terminal shows it.

    Colours stay; cursor moves go, and blanks that have overwritten the end.
    """
    if "\r" in line:
        line = line.removesuffix("\r")
        states = line.split("\r")
        line = ""
        for state in states:
            line = _overwritten(line, state)
        line = line.rstrip(" ")
    return _MOVES.sub("", line) if "\x1b" in line else line


def is_blank(line: str) -> bool:
    """Whether a line that was overwritten shows nothing in the end."""
    return "\r" in line and not _ESCAPES.sub("", shown(line)).strip()


def _overwritten(before: str, after: str) -> str:
    if not after:
        return before
    if "\x1b" in before or "\x1b" in after or len(after) >= len(before):
        # Escape sequences make columns unknown; progress bars rewrite the whole line anyway.
        return _ERASE_LINE.sub("", after)
    return after + before[len(after) :]
