"""Counts what is alike, and says what of it to write down: a flood costs few lines. No I/O.

Invariants: of one kind the first `EACH` are written, and then each whose number is a power of two;
so many kinds are told apart, and no more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
EACH = 8
KINDS = 4096


class Tally(Generic[K]):
    """How many of each kind there were. Not thread-safe."""

    def __init__(self, kinds: int = KINDS) -> None:
        self._kinds = kinds
        self._counts: dict[K, int] = {}

    def tells_apart(self, kind: K) -> bool:
        """Whether there is room for that kind, or it is known already."""
        return kind in self._counts or len(self._counts) < self._kinds

    def note(self, kind: K) -> int:
        """One more of that kind: its number if it is to be written, else 0."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        return count if _is_written(count) else 0

    def counts(self) -> Iterator[tuple[K, int]]:
        """How many there were of each kind."""
        yield from self._counts.items()

    def unwritten(self) -> Iterator[tuple[K, int]]:
        """The last numbers that were not written, and forget all of them."""
        counts, self._counts = self._counts, {}
        yield from ((kind, count) for kind, count in counts.items() if not _is_written(count))


def _is_written(count: int) -> bool:
    return count <= EACH or count & (count - 1) == 0
