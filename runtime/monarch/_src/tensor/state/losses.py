"""The values of tensors that restarts of ranks have lost. No I/O.

Tensors have ascending numbers. A rank whose process is a new one has no value of the tensors that
its batches have made before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from monarch._src.failures.report import RankFailure


class Loss(NamedTuple):
    """A rank has no value of the tensors with numbers below `before`, since `failure`."""

    before: int
    failure: RankFailure


class Losses:
    """What the ranks of one proc mesh have lost.

    `note_restart` and `note_batch` run on the receiving thread, and wait for nothing. `take_up`
    runs on the thread that holds the lock of the driver, before it numbers the next tensor.
    Invariants: `is_any` is true if and only if something was ever noted.
    """

    def __init__(self) -> None:
        self.is_any = False
        self.version = 0  # how often something was taken up
        self._news: deque[tuple[int, int, RankFailure]] = deque()  # rank, before or 0, failure
        self._by_rank: dict[int, Loss] = {}

    @property
    def has_news(self) -> bool:
        """Whether something is noted that is not taken up."""
        return bool(self._news)

    def note_restart(self, rank: int, failure: RankFailure) -> None:
        """A rank has died and is being restarted."""
        self._news.append((rank, 0, failure))
        self.is_any = True

    def note_batch(self, rank: int, failure: RankFailure, before: int) -> None:
        """A batch is lost on a rank; all its tensors have numbers below `before`."""
        self._news.append((rank, before, failure))
        self.is_any = True

    def take_up(self, next_number: int) -> set[int]:
        """Enter all that was noted. Returns the ranks that have lost messages.

        `next_number`: of the next tensor. Tensors below it count as lost on a rank that restarts.
        """
        ranks: set[int] = set()
        self.version += bool(self._news)
        while self._news:
            rank, before, failure = self._news.popleft()
            ranks.add(rank)
            before = before or next_number
            known = self._by_rank.get(rank)
            if known is None or known.before < before:
                self._by_rank[rank] = Loss(before, failure)
        return ranks

    def find(self, ranks: Iterable[int], numbers: Iterable[int]) -> RankFailure | None:
        """The failure for which one of these ranks has no value of one of these tensors."""
        oldest = min(numbers, default=None)
        if oldest is None:
            return None
        for rank in ranks:
            loss = self._by_rank.get(rank)
            if loss is not None and oldest < loss.before:
                return loss.failure
        return None
