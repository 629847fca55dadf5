"""Which rank runs which items of a map. No I/O, no clock.

Items are numbered from 0 and handed out in chunks. Events are methods; `hand_out` returns the
chunks to send. A rank has at most two chunks: the one that it runs, and the next one, so that it
does not idle for the time of a message. The second one is handed out only while items are short
and plentiful, since it would otherwise wait behind a long one while another rank is idle.

Without a fixed size, the first chunk of each rank has one item. Later ones take about `CHUNK_S`, by
the mean time of the items that are done, and become smaller towards the end, so that all ranks end
together. Long items may follow many short ones, in a chunk that was meant to be short. So a rank
that has run a chunk for `LONGEST_S` gives back the items that it has not begun; they go to all
ranks in equal parts. And while a rank is idle, and there is nothing to hand out, chunks that other
ranks have not begun are withdrawn for it: they may wait behind a long item.

When a rank is lost, its chunks are handed out again, before others. The first of them was running
(a rank runs its chunks in order), so one of its items may have ended the rank: from then on each of
these is a chunk of its own, and an item that was running at `MOST_LOSSES` losses is abandoned.

A chunk whose items cannot be read together is split: each of its items is a chunk of its own.

Items are known from the start, or are taken from an iterable while the map is open. At most a
window of items is taken and not yet yielded. Without a size for it, the window is the work of
`WINDOW_S` for each rank, by the mean time of items, within limits of items and bytes. Up to the
window, items are taken for two chunks a rank and one item more; those that no rank may be given yet
wait here. A chunk has its full size, unless the caller is about to wait: then ranks without work
share what there is.
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
WINDOW_S = 2.0
"""How many seconds of each rank's work are taken and not yet yielded, if no window is given."""
FEWEST_ITEMS = 2 * MOST_IN_FLIGHT
"""Items of a rank that such a window has at least, unless they are large."""
MOST_ITEMS = 1024
"""Items of a rank that such a window has at most."""
WINDOW_BYTES = 64 << 20
"""Bytes of items and results that such a window has, unless a rank would have no item."""
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

    def __init__(
        self, items: int, ranks: Iterable[int], chunk_size: int | None = None, *,
        is_open: bool = False, window: int | None = None, expected: int | None = None,
        most_in_flight: int = MOST_IN_FLIGHT,
    ) -> None:  # fmt: skip
        """`items`: how many there are; if the map `is_open`, how many have been taken.

        `chunk_size`: how many items a chunk has; None: it follows the time that items take.
        `window`: how many items are taken and not yet yielded at most; None: it follows their time
        and size. `expected`: how many an open map will have, as far as is known. `most_in_flight`:
        how many chunks a rank has; with 1, what waits goes to the rank that is free first.
        """
        self.most_in_flight = most_in_flight
        self.items = items
        self.chunk_size = chunk_size
        self.is_open = is_open
        self.given_window = window
        self.expected = expected
        self.yielded = 0  # of an open map, or one that was open
        # All and only ranks that can be given chunks, each with those that it has, oldest first.
        self.in_flight: dict[int, list[Chunk]] = {rank: [] for rank in ranks}
        # Every item is in exactly one of: `returned`, a chunk in flight, `done`, `abandoned`,
        # `dropped`, and the items from `fresh` on.
        self.fresh = 0
        self.returned: deque[Sequence[int]] = deque()
        # Numbers of chunks in flight that their ranks are to give back if they have not begun them.
        self.withdrawn: set[int] = set()
        self.done = 0
        self.abandoned: set[int] = set()
        self.dropped = 0
        self.losses: dict[int, int] = {}  # by item that was running when its rank was lost
        self.item_s: float | None = None  # the mean time of an item; None: none is done
        self.item_bytes = 0.0  # the mean size of an item
        self.result_bytes = 0.0  # and of a result
        self._last: int | None = None  # items after this one are not run
        self._chunks = 0

    @property
    def left(self) -> int:
        """How many items are there that no rank has been given yet."""
        return self.items - self.fresh + sum(map(len, self.returned))

    @property
    def total(self) -> int | None:
        """How many items the map has; None: that is not known."""
        if not self.is_open:
            return self.items
        return None if self.expected is None else max(self.expected, self.items)

    @property
    def is_complete(self) -> bool:
        """Whether every item is done, abandoned or dropped, and there are no others."""
        settled = self.done + len(self.abandoned) + self.dropped
        return not self.is_open and settled == self.items

    @property
    def busy_ranks(self) -> list[int]:
        """The ranks that have chunks."""
        return [rank for rank, chunks in self.in_flight.items() if chunks]

    @property
    def window(self) -> int:
        """How many items may be taken and not yet yielded."""
        if self.given_window is not None:
            return self.given_window
        ranks, size = len(self.in_flight), self.chunk_size or 1
        fewest = FEWEST_ITEMS * ranks * size
        if self.item_s is None:
            return fewest
        most = max(fewest, MOST_ITEMS * ranks)
        if self.item_s:
            most = max(fewest, int(min(most, WINDOW_S * ranks / self.item_s)))
        if nbytes := self.item_bytes + self.result_bytes:
            most = min(most, max(ranks * size, int(WINDOW_BYTES / nbytes)))
        return most

    @property
    def wanted(self) -> int:
        """How many items to take now."""
        return max(0, min(self._lacking, self.window - (self.items - self.yielded)))

    @property
    def yields_until_wanted(self) -> int | None:
        """After how many yields the items of a chunk are to be taken; None: not before an answer.

        So that the caller need not look after each yield.
        """
        lacking = self._lacking
        if lacking <= 0:
            return None
        room = self.window - (self.items - self.yielded)
        return max(1, min(lacking, self.chunk_size or self._size()) - room)

    def on_taken(self, count: int, *, at_end: bool) -> None:
        """The caller has taken that many items; `at_end`: there are no others."""
        assert self.is_open, "items of a map that is closed"
        self.items += count
        self.is_open = not at_end

    def on_yielded(self, count: int = 1) -> None:
        """The caller has yielded results, each of another item."""
        self.yielded += count

    def on_sent(self, item_bytes: float) -> None:
        """The items of a chunk have that mean size, in bytes."""
        self.item_bytes = _risen(self.item_bytes, item_bytes)

    def on_received(self, result_bytes: float) -> None:
        """The results of a chunk have that mean size, in bytes."""
        self.result_bytes = _risen(self.result_bytes, result_bytes)

    def cut(self, last: int) -> None:
        """Take no other items, and hand out none after `last`, since the results end with it.

        Items after it are left to the ranks that have them.
        """
        self.is_open = False
        if self._last is not None and self._last <= last:
            return
        self._last = last
        self.items = max(self.fresh, min(self.items, last + 1))
        self._drop_after_last()

    def hand_out(self, *, waiting: bool = True) -> list[Chunk]:
        """The chunks to send now. Every rank gets its first before any rank gets its second.

        `waiting`: the caller is about to wait for answers. Ranks without work then share what there
        is, though it be less than a chunk each.
        """
        found: list[Chunk] = []
        for depth in range(self.most_in_flight):
            for rank, chunks in self.in_flight.items():
                if len(chunks) != depth or (depth and not self._may_queue()):
                    continue
                items = self._next_items(share=waiting and not depth)
                if not items:
                    return found
                self._chunks += 1
                chunk = Chunk(self._chunks, rank, items)
                chunks.append(chunk)
                found.append(chunk)
        return found

    def withdraw(self) -> list[Chunk]:
        """The chunks to ask back now, after `hand_out`: each once, and one for each idle rank.

        A rank that has begun such a chunk runs it.
        """
        if self.left:
            return []
        idle = sum(not chunks for chunks in self.in_flight.values()) - len(self.withdrawn)
        queued = [
            chunk
            for chunks in self.in_flight.values()
            for chunk in chunks[1:]
            if chunk.number not in self.withdrawn
        ]
        found = sorted(queued, key=lambda chunk: chunk.number)[: max(0, idle)]
        self.withdrawn.update(chunk.number for chunk in found)
        return found

    def on_withdrawn(self, chunk: Chunk) -> None:
        """A rank has given back a chunk that it had not begun."""
        self._remove(chunk)
        idle = sum(not chunks for chunks in self.in_flight.values())
        self._give_back(chunk.items, 1 if self.chunk_size else idle)

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
        self._give_back(chunk.items[begun:], len(self.in_flight))

    def on_split(self, chunk: Chunk) -> None:
        """No item of a chunk could be run: each is handed out alone, before others."""
        self._remove(chunk)
        self.returned.extendleft((item,) for item in reversed(chunk.items))
        self._drop_after_last()

    def is_in_flight(self, chunk: Chunk) -> bool:
        """Whether its rank is to answer that chunk: the rank is not lost."""
        return chunk in self.in_flight.get(chunk.rank, ())

    def on_rank_lost(self, rank: int, *, comes_back: bool = False) -> Loss:
        """A rank is gone, or (`comes_back`) has lost its chunks and can be given others."""
        chunks = self.in_flight.pop(rank, [])
        self.withdrawn.difference_update(chunk.number for chunk in chunks)
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
        self._drop_after_last()
        if self._last is not None:
            again = [item for item in again if item <= self._last]
        return Loss(again, abandoned)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        held = [item for chunks in self.in_flight.values() for c in chunks for item in c.items]
        waiting = [item for items in self.returned for item in items]
        known = [*held, *waiting, *self.abandoned]
        assert len(known) == len(set(known)), "an item is at two places"
        assert all(0 <= item < self.fresh for item in known), "an item that nobody was given"
        assert self.done + self.dropped == self.fresh - len(known), "an item is lost, or done twice"
        assert self.fresh <= self.items, "an item that was not taken"
        assert self.yielded <= self.done + len(self.abandoned), "a result that is not there"
        assert all(self.returned), "an empty chunk"
        assert self._last is None or all(item <= self._last for item in waiting), "no end"
        given = {c.number for chunks in self.in_flight.values() for c in chunks}
        assert self.withdrawn <= given, "a withdrawn chunk that no rank has"
        for rank, chunks in self.in_flight.items():
            assert len(chunks) <= self.most_in_flight, f"rank {rank} has {len(chunks)} chunks"
            assert all(chunk.rank == rank and chunk.items for chunk in chunks)
            numbers = [chunk.number for chunk in chunks]
            assert numbers == sorted(numbers), "chunks out of order"
        assert all(losses <= MOST_LOSSES for losses in self.losses.values())
        assert {i for i, n in self.losses.items() if n == MOST_LOSSES} >= self.abandoned

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _lacking(self) -> int:
        """How many items would be taken if the window were without limit."""
        if not self.is_open or not self.in_flight:
            return 0
        ranks = len(self.in_flight)
        free = self.most_in_flight * ranks - sum(map(len, self.in_flight.values()))
        # A rank gets its second chunk only while more items than ranks are left: see `_may_queue`.
        return free * (self.chunk_size or self._size()) + ranks - self.left

    def _may_queue(self) -> bool:
        """Whether ranks that run a chunk are given the next one."""
        if self.item_s is None or self.left <= len(self.in_flight):
            return False
        return self.item_s * (self.chunk_size or self._size()) <= SHORT_S

    def _next_items(self, *, share: bool) -> Sequence[int]:
        if self.returned:
            return self.returned.popleft()
        begin, left = self.fresh, self.items - self.fresh
        size = self.chunk_size or self._size()
        if self.is_open and left < size:
            if not share or (self.chunk_size and self.wanted):
                return ()
            if not self.chunk_size:  # its remainder goes to the ranks that come later
                idle = sum(not chunks for chunks in self.in_flight.values())
                size = max(1, left // idle)
        self.fresh = min(self.items, begin + size)
        return range(begin, self.fresh)

    def _size(self) -> int:
        """How many items the next chunk has."""
        if self.item_s is None:
            return 1
        left = self.left
        if self.is_open:
            left = self.window
            if self.expected is not None:
                left = min(left, max(0, self.expected - self.items) + self.left)
        share = left // (2 * MOST_IN_FLIGHT * len(self.in_flight))
        wanted = CHUNK_S / self.item_s if self.item_s else share
        return max(1, int(min(share, wanted)))

    def _remove(self, chunk: Chunk) -> None:
        chunks = self.in_flight.get(chunk.rank, [])
        assert chunk in chunks, f"chunk {chunk.number} is not in flight"
        chunks.remove(chunk)
        self.withdrawn.discard(chunk.number)

    def _give_back(self, items: Sequence[int], parts: int) -> None:
        """Have items handed out again, before others, in that many parts."""
        parts = max(1, min(len(items), parts)) if items else 0
        # Neighbours go to different ranks: long items often come together.
        self.returned.extendleft(items[at::parts] for at in reversed(range(parts)))
        self._drop_after_last()

    def _drop_after_last(self) -> None:
        """Drop the items that were given back, and that are not to be run."""
        last = self._last
        if last is None:
            return
        kept = [[item for item in items if item <= last] for items in self.returned]
        self.dropped += sum(map(len, self.returned)) - sum(map(len, kept))
        self.returned = deque(items for items in kept if items)


def _risen(before: float, size: float) -> float:
    """A mean size. A larger one counts at once, so that memory is not exceeded for long."""
    return size if size > before else before + _NEWEST * (size - before)
