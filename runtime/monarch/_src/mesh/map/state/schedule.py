"""Which rank runs which items of a map. No I/O, no clock.

Items are numbered from 0 and handed out in chunks. Events are methods; `hand_out` returns the
chunks to send. A rank has at most two chunks: the one that it runs, and the next one, so that it
does not idle for the time of a message. The second one is handed out only while items are short
and plentiful, since it would otherwise wait behind a long one while another rank is idle.

Without a fixed size, the first chunk of each rank has one item. Later ones take about `CHUNK_S`, by
the mean time of the items that are done, and become smaller towards the end, so that all ranks end
together. Long items may follow many short ones, in a chunk that was meant to be short. So a rank
that has run a chunk for `LONGEST_S` gives back the items that it has not begun; they go to all
ranks in equal parts.

When a rank is lost, its chunks are handed out again, before others. The first of them was running
(a rank runs its chunks in order), so one of its items may have ended the rank: from then on each of
these is a chunk of its own, and an item that was running at `MOST_LOSSES` losses is abandoned.

A chunk whose items cannot be read together is split: each of its items is a chunk of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

CHUNK_S = 0.05
"""How many seconds a chunk should take."""
LONGEST_S = 4 * CHUNK_S
"""How many seconds a chunk may take before its rank gives back what it has not begun."""
SHORT_S = 1.0
"""Seconds: a rank whose chunks take longer gets no second one; a message takes a thousandth."""
MOST_IN_FLIGHT = 2
"""Chunks that a rank has at most."""
MOST_LOSSES = 3
"""Losses of a rank that ran an item after which the item is not tried again."""
_NEWEST = 0.25  # the weight of the newest chunk in the mean time of an item


class Chunk(msgspec.Struct, frozen=True):
    """Items that one rank runs in order. `number` grows from chunk to chunk."""

    number: int
    rank: int
    items: Sequence[int]


class Loss(msgspec.Struct, frozen=True):
    """The consequence of a loss: the items that go to other ranks, and those that are abandoned."""

    again: Sequence[int]
    abandoned: Sequence[int]


class MapSchedule:
    """The items of one map, and the ranks that run them."""

    def __init__(self, items: int, ranks: Iterable[int], chunk_size: int | None = None) -> None:
        """`chunk_size`: how many items a chunk has; None: it follows the time that items take."""
        self.items = items
        self.chunk_size = chunk_size
        # All and only ranks that can be given chunks, each with those that it has, oldest first.
        self.in_flight: dict[int, list[Chunk]] = {rank: [] for rank in ranks}
        # Every item is in exactly one of: `returned`, a chunk in flight, `done`, `abandoned`, and
        # the items from `fresh` on.
        self.fresh = 0
        self.returned: deque[Sequence[int]] = deque()
        self.done = 0
        self.abandoned: set[int] = set()
        self.losses: dict[int, int] = {}  # by item that was running when its rank was lost
        self.item_s: float | None = None  # the mean time of an item; None: none is done
        self._chunks = 0

    @property
    def left(self) -> int:
        """How many items no rank has been given yet."""
        return self.items - self.fresh + sum(map(len, self.returned))

    @property
    def is_complete(self) -> bool:
        """Whether every item is done or abandoned."""
        return self.done + len(self.abandoned) == self.items

    @property
    def busy_ranks(self) -> list[int]:
        """The ranks that have chunks."""
        return [rank for rank, chunks in self.in_flight.items() if chunks]

    def hand_out(self) -> list[Chunk]:
        """The chunks to send now. Every rank gets its first before any rank gets its second."""
        found: list[Chunk] = []
        for depth in range(MOST_IN_FLIGHT):
            for rank, chunks in self.in_flight.items():
                if len(chunks) != depth or (depth and not self._may_queue()):
                    continue
                items = self._next_items()
                if not items:
                    return found
                self._chunks += 1
                chunk = Chunk(self._chunks, rank, items)
                chunks.append(chunk)
                found.append(chunk)
        return found

    def on_done(self, chunk: Chunk, seconds: float, begun: int | None = None) -> None:
        """A rank has run the first `begun` items of a chunk (None: all), within that time.

        The others are handed out again, before others.
        """
        self._remove(chunk)
        begun = len(chunk.items) if begun is None else begun
        self.done += begun
        item_s = max(0.0, seconds) / begun
        before = item_s if self.item_s is None else self.item_s
        self.item_s = before + _NEWEST * (item_s - before)
        rest = chunk.items[begun:]
        parts = min(len(rest), len(self.in_flight))
        # Neighbours go to different ranks: long items often come together.
        self.returned.extendleft(rest[at::parts] for at in reversed(range(parts)))

    def on_split(self, chunk: Chunk) -> None:
        """No item of a chunk could be run: each is handed out alone, before others."""
        self._remove(chunk)
        self.returned.extendleft((item,) for item in reversed(chunk.items))

    def is_in_flight(self, chunk: Chunk) -> bool:
        """Whether its rank is to answer that chunk: the rank is not lost."""
        return chunk in self.in_flight.get(chunk.rank, ())

    def on_rank_lost(self, rank: int, *, comes_back: bool = False) -> Loss:
        """A rank is gone, or (`comes_back`) has lost its chunks and can be given others."""
        chunks = self.in_flight.pop(rank, [])
        if comes_back:
            self.in_flight[rank] = []
        again: list[int] = []
        abandoned: list[int] = []
        for waiting in reversed(chunks[1:]):
            self.returned.appendleft(waiting.items)
            again[:0] = waiting.items
        for item in reversed(chunks[0].items if chunks else ()):
            losses = self.losses[item] = self.losses.get(item, 0) + 1
            if losses >= MOST_LOSSES:
                abandoned.insert(0, item)
            else:
                self.returned.appendleft((item,))
                again.insert(0, item)
        self.abandoned.update(abandoned)
        return Loss(again, abandoned)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        held = [item for chunks in self.in_flight.values() for c in chunks for item in c.items]
        waiting = [item for items in self.returned for item in items]
        known = [*held, *waiting, *self.abandoned]
        assert len(known) == len(set(known)), "an item is at two places"
        assert all(0 <= item < self.fresh for item in known), "an item that nobody was given"
        assert self.done == self.fresh - len(known), "an item is lost, or done twice"
        assert all(self.returned), "an empty chunk"
        for rank, chunks in self.in_flight.items():
            assert len(chunks) <= MOST_IN_FLIGHT, f"rank {rank} has {len(chunks)} chunks"
            assert all(chunk.rank == rank and chunk.items for chunk in chunks)
            numbers = [chunk.number for chunk in chunks]
            assert numbers == sorted(numbers), "chunks out of order"
        assert all(losses <= MOST_LOSSES for losses in self.losses.values())
        assert {i for i, n in self.losses.items() if n == MOST_LOSSES} >= self.abandoned

    # --- inside -----------------------------------------------------------------------------------

    def _may_queue(self) -> bool:
        """Whether ranks that run a chunk are given the next one."""
        if self.item_s is None or self.left <= len(self.in_flight):
            return False
        return self.item_s * (self.chunk_size or self._size()) <= SHORT_S

    def _next_items(self) -> Sequence[int]:
        if self.returned:
            return self.returned.popleft()
        begin = self.fresh
        self.fresh = min(self.items, begin + (self.chunk_size or self._size()))
        return range(begin, self.fresh)

    def _size(self) -> int:
        """How many items the next chunk has."""
        if self.item_s is None:
            return 1
        share = self.left // (2 * MOST_IN_FLIGHT * len(self.in_flight))
        wanted = CHUNK_S / self.item_s if self.item_s else share
        return max(1, int(min(share, wanted)))

    def _remove(self, chunk: Chunk) -> None:
        chunks = self.in_flight.get(chunk.rank, [])
        assert chunk in chunks, f"chunk {chunk.number} is not in flight"
        chunks.remove(chunk)
