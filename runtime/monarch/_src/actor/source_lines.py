"""Source text of code that was pickled by value, in the form that `linecache` holds. No I/O.

Each process of a mesh receives the text of the source files, and most never show a line of it. To
split 3,000 lines takes a tenth of the time of a process's start, so that is done on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload


class SourceLines(Sequence[str]):
    """The lines of a text, with their line ends; split on first access."""

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
