"""Counters that decide which repeated events to log, so that a flood costs few lines. No I/O.

Invariants: the first `EACH` events of a kind are logged, then those whose number is a power of two.
The number of kinds that are counted separately is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
EACH = 8
KINDS = 4096
OF_ONE = 256


class Tally(Generic[K]):
    """Counts events by kind. Not thread-safe."""

    def __init__(self, kinds: int = KINDS) -> None:
        self._kinds = kinds
        self._counts: dict[K, int] = {}

    def knows(self, kind: K) -> bool:
        """Whether an event of that kind was counted."""
        return kind in self._counts

    def has_room_for(self, kind: K) -> bool:
        """Whether that kind is known, or there is room for one more."""
        return kind in self._counts or len(self._counts) < self._kinds

    def note(self, kind: K) -> int:
        """Count an event of that kind; returns its number if it is to be logged, else 0."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        return count if _is_written(count) else 0

    def counts(self) -> Iterator[tuple[K, int]]:
        """The kinds and their counts."""
        yield from self._counts.items()

    def unwritten(self) -> Iterator[tuple[K, int]]:
        """The counts whose last event was not logged; resets all counts."""
        counts, self._counts = self._counts, {}
        yield from ((kind, count) for kind, count in counts.items() if not _is_written(count))


class SharedTally(Generic[K]):
    """A tally in which a source of very many kinds leaves room for others. Not thread-safe.

    At most `of_one` kinds of a source are counted separately, and `kinds` in all.
    """

    def __init__(self, kinds: int = KINDS, of_one: int = OF_ONE) -> None:
        self._tally: Tally[K] = Tally(kinds)
        self._of_one = of_one
        self._kinds: Counter[K] = Counter()  # of each source that has any

    def note(self, kind: K, source: K, rest: K) -> tuple[K, int] | None:
        """Count an event of that kind; returns the kind to log and its number, or None.

        `source` is the kind for events of that source beyond its limit, `rest` the kind for events
        of all sources beyond the limit of the tally.
        """
        if not self._tally.knows(kind):
            if self._kinds[source] < self._of_one and self._tally.has_room_for(kind):
                self._kinds[source] += 1
            else:
                kind = source if self._tally.has_room_for(source) else rest
        count = self._tally.note(kind)
        return (kind, count) if count else None

    def unwritten(self) -> Iterator[tuple[K, int]]:
        """The counts whose last event was not logged; resets all counts."""
        self._kinds.clear()
        return self._tally.unwritten()


def _is_written(count: int) -> bool:
    return count <= EACH or count & (count - 1) == 0
