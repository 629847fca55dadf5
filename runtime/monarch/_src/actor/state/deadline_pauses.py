"""The pauses of ranks at breakpoints, during which the deadlines of waits stand still. Pure.

Invariants: the pauses of one rank do not overlap, and only the last may be open. A rank that was
never paused has no entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

LONGEST = 64  # pauses kept for each rank; stepping through code makes many


class Pauses:
    """The pauses of ranks (mesh, rank) that one process knows of.

    Times are seconds of one steady clock; an open pause ends at None.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], list[tuple[float, float | None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def on_paused(self, mesh: int, rank: int, paused: bool, now: float) -> None:
        """A rank is paused from now on, or no longer. Idempotent."""
        spans = self._of.get((mesh, rank), [])
        lasts = bool(spans) and spans[-1][1] is None
        if paused and not lasts:
            self._of[mesh, rank] = [*spans[1 - LONGEST :], (now, None)]
        elif lasts and not paused:
            self._of[mesh, rank] = [*spans[:-1], (spans[-1][0], now)]

    def clear(self) -> None:
        """Forget all pauses."""
        self._of = {}

    def within(
        self, ranks: Iterable[tuple[int, int]], since: float, now: float
    ) -> tuple[float, bool]:
        """How many seconds since `since` any of these ranks was paused, and whether one still is.

        Simultaneous pauses count once.
        """
        spans = [span for rank in ranks for span in self._of.get(rank, ())]
        total, until = 0.0, since
        for begin, end in sorted(spans, key=lambda span: span[0]):
            end = now if end is None else end
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total, any(end is None for _, end in spans)

    def validate(self) -> None:
        """Assert the invariants."""
        for spans in self._of.values():
            assert 0 < len(spans) <= LONGEST
            assert all(end is not None for _, end in spans[:-1])
            for (_, end), (begin, _) in pairwise(spans):
                assert end is not None
                assert end <= begin
