"""Source text that came with code, as what `linecache` holds of a file. No I/O.

Each process of a mesh gets the text of the files that code by value came from, and most never show
a line of it. To take 3,000 lines apart takes a process as long as a tenth of its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload


class SourceLines(Sequence[str]):
    """The lines of a text, with their ends; taken apart when somebody first looks."""

    __slots__ = ("_lines", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: list[str] | None = None

    def _apart(self) -> list[str]:
        if self._lines is None:
            self._lines = self._text.splitlines(keepends=True)
        return self._lines

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._apart()[at]

    def __len__(self) -> int:
        return len(self._apart())

    def __iter__(self) -> Iterator[str]:
        return iter(self._apart())
