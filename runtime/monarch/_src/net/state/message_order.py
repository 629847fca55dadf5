"""Order over two routes: messages of one process to another arrive in order. No I/O.

A message to one proc goes *direct*; one to many may go as a *cast*, which the host agent relays.
Each route preserves its order, but one may be faster than the other. So each message names its
predecessor on the other route, and the receiver holds it back until that has come:

- a direct message carries the number of the last cast before it that included its receiver;
- a cast carries, for receivers that were sent direct messages since their last cast, how many
  direct messages they were sent in all. Other receivers cost nothing.

So the cost of a direct message does not depend on the number of ranks, and the cost of a cast
depends only on the direct messages since the last one. No message waits for ever: it only waits for
messages that were sent before it.

The sender numbers its casts to one mesh from 1. A receiver is part of one mesh, and counts by
sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from monarch._src.shape import Region

T = TypeVar("T")
REMEMBERED = 8


class Outgoing:
    """The sender's side, for the procs of one mesh. Not thread-safe."""

    __slots__ = ("_all", "_born", "_casts", "_direct", "_last", "_recent", "_to_all", "_unfenced")

    def __init__(self) -> None:
        self._born: dict[int, int] = {}  # by restarted rank: the casts before its restart
        self._casts = 0
        self._direct: dict[int, int] = {}  # by rank: direct messages, without those to all ranks
        self._to_all = 0  # direct messages sent to every rank
        self._all = 0  # the number of these ranks
        self._unfenced: set[int] = set()  # ranks with direct messages since their last cast
        # The last cast of each of the latest regions, oldest first; older ones are kept by rank.
        self._recent: dict[Region, int] = {}
        self._last: dict[int, int] = {}

    def direct(self, rank: int) -> int:
        """A direct message to that rank is about to be sent: the cast that it follows, or 0."""
        self._direct[rank] = self._direct.get(rank, 0) + 1
        if not self._casts:
            return 0
        self._unfenced.add(rank)
        last = self._last_cast(rank)
        return last if not self._born or last > self._born.get(rank, 0) else 0

    def direct_to_all(self, ranks: int) -> bool:
        """A direct message is about to be sent to each of these ranks, following no cast.

        False: it might follow a cast, and was not counted; call `direct` for each rank.
        """
        if self._casts:
            return False
        self._to_all += 1
        self._all = ranks
        return True

    def _last_cast(self, rank: int) -> int:
        for region in reversed(self._recent):
            if rank in region:
                return self._recent[region]
        return self._last.get(rank, 0)

    def renewed(self, rank: int) -> None:
        """That rank has been restarted; the new process has got no message yet."""
        self._direct[rank] = -self._to_all
        self._unfenced.discard(rank)
        if self._casts:
            self._born[rank] = self._casts

    def cast(self, region: Region) -> tuple[int, list[tuple[int, int]]]:
        """A cast is about to be sent: its number, and (rank, direct messages before it)."""
        if not self._casts:
            self._unfenced.update(self._direct, range(self._all))
        self._casts += 1
        self._recent.pop(region, None)
        self._recent[region] = self._casts
        if len(self._recent) > REMEMBERED:
            oldest = next(iter(self._recent))
            self._last.update(dict.fromkeys(oldest.ranks(), self._recent.pop(oldest)))
        fenced = [rank for rank in self._unfenced if rank in region]
        self._unfenced.difference_update(fenced)
        sent, to_all = self._direct, self._to_all
        counts = [(rank, sent.get(rank, 0) + to_all) for rank in fenced]
        return self._casts, [(rank, count) for rank, count in counts if count]


class Incoming(Generic[T]):
    """The receiver's side, for one sender. Not thread-safe: one thread at a time receives.

    `holds`: whether a message waits for the other route.
    """

    __slots__ = ("_casts", "_direct", "_held_casts", "_held_direct", "holds")

    def __init__(self) -> None:
        self.holds = False
        self._direct = 0  # direct messages delivered
        self._casts = 0  # the number of the last delivered cast
        self._held_direct: deque[tuple[int, T]] = deque()
        self._held_casts: deque[tuple[int, int, T]] = deque()

    def direct(self, after: int, item: T) -> bool:
        """A direct message came. True: deliver it; False: it is held back."""
        if after > self._casts or self._held_direct:
            self._held_direct.append((after, item))
            self.holds = True
            return False
        self._direct += 1
        return True

    def cast(self, number: int, fence: int, item: T) -> bool:
        """A cast came, which follows `fence` direct messages. True: deliver it."""
        if fence > self._direct or self._held_casts:
            self._held_casts.append((number, fence, item))
            self.holds = True
            return False
        self._casts = number
        return True

    def released(self) -> Iterator[T]:
        """The held messages that can be delivered now, in order."""
        while True:
            if self._held_direct and self._held_direct[0][0] <= self._casts:
                self._direct += 1
                yield self._held_direct.popleft()[1]
            elif self._held_casts and self._held_casts[0][1] <= self._direct:
                number, _, item = self._held_casts.popleft()
                self._casts = number
                yield item
            else:
                self.holds = bool(self._held_direct or self._held_casts)
                return
