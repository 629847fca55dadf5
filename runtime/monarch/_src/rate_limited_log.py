"""Counts what is alike, and says what of it to write down: a flood costs few lines. No I/O.

Invariants: of one kind the first `EACH` are written, and then each whose number is a power of two;
so many kinds are told apart, and no more.
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
    """How many of each kind there were. Not thread-safe."""

    def __init__(self, kinds: int = KINDS) -> None:
        self._kinds = kinds
        self._counts: dict[K, int] = {}

    def knows(self, kind: K) -> bool:
        """Whether there was one of that kind."""
        return kind in self._counts

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


class SharedTally(Generic[K]):
    """A tally in which one who causes very many kinds leaves others room. Not thread-safe.

    Of one source `of_one` kinds are told apart, and of all sources `kinds`.
    """

    def __init__(self, kinds: int = KINDS, of_one: int = OF_ONE) -> None:
        self._tally: Tally[K] = Tally(kinds)
        self._of_one = of_one
        self._kinds: Counter[K] = Counter()  # of each source that has any

    def note(self, kind: K, source: K, rest: K) -> tuple[K, int] | None:
        """One more of that kind; or of `source`, or of `rest`, where too many are told apart.

        `source`: the kind of all further ones of that source; `rest`: of all further ones. What is
        to be written, with its number, if anything is.
        """
        if not self._tally.knows(kind):
            if self._kinds[source] < self._of_one and self._tally.tells_apart(kind):
                self._kinds[source] += 1
            else:
                kind = source if self._tally.tells_apart(source) else rest
        count = self._tally.note(kind)
        return (kind, count) if count else None

    def unwritten(self) -> Iterator[tuple[K, int]]:
        """The last numbers that were not written, and forget all of them."""
        self._kinds.clear()
        return self._tally.unwritten()


def _is_written(count: int) -> bool:
    return count <= EACH or count & (count - 1) == 0
