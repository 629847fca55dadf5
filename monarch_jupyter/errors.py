"""The error that a command raises when it is refused. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CommandError(ValueError):
    """A command was refused before anything was done.

    Its text is one line: what is wrong, and what to type instead. A magic shows it without a
    traceback.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'spawn'?"` for the closest known word; empty if no word is close."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.65)
    return f"; did you mean '{near[0]}'?" if near else ""


def one_line(text: str) -> str:
    """`text` with each run of white space, line breaks included, replaced by one space."""
    return " ".join(text.split())
