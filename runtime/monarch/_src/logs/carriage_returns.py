"""What a terminal would show of a line with carriage returns, as progress bars write. No I/O."""

from __future__ import annotations

import re

# Moves of the cursor and clearing of the screen mean nothing beside other ranks' lines; colours do.
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhlsu]")
_ERASE_LINE = re.compile(r"\x1b\[[0-2]?K")


def shown(line: str) -> str:
    """What a terminal shows in the end of a line that was written over (`\r`, as by a bar).

    Colours stay; moves of the cursor go, which mean nothing beside the lines of other ranks.
    """
    if "\r" in line:
        line = line.removesuffix("\r")
        states = line.split("\r")
        line = ""
        for state in states:
            line = _over(line, state)
    return _MOVES.sub("", line) if "\x1b" in line else line


def _over(before: str, after: str) -> str:
    if not after:
        return before
    if "\x1b" in before or "\x1b" in after or len(after) >= len(before):
        # With colours in it, what stands where can't be told; bars write whole lines.
        return _ERASE_LINE.sub("", after)
    return after + before[len(after) :]
