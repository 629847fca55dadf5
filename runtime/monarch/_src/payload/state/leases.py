"""The segments that a process lends to the receivers of its large payloads. No I/O, no clock.

A segment contains the large parts of one message at a time. Its sender *holds* it while it may
still send that message. Each receiver has a *loan*, from the time when the message is sent to it
until its last view is gone. A segment that is neither held nor lent waits in the pool for another
message, or is freed:

    state     lent       loan ended   let go      no user left           aged     wanted
    HELD      one more   one less     not held    POOLED, or freed       -        -
    POOLED    -          -            -           -                      freed    HELD

A segment is never reused while a process may still see it. If a receiver died, or has forked since,
the segment is *spoiled*: it is freed, and processes that have it mapped keep its memory.

The driver is `monarch._src.payload.sender`. Events are methods named in the past tense; an event
after which segments are to be freed returns them.
which segments are to be freed return these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

LENT, TAKEN, RETURNED, SPOILED = 0, 1, 2, 3  # values of a loan's word, written by its receiver
SMALLEST = 1 << 17  # bytes of the smallest segment
MOST_SEGMENTS = 128  # each has a descriptor
MOST_LOANS = 4080  # of one message: the words in the header
POOL_BYTES = 1 << 28  # of all segments in the pool
POOLED_S = 2.0  # how long a segment stays in the pool


class Free(msgspec.Struct, frozen=True):
    """Free a segment; `shared`: other processes may still see it, so its pages must stay."""

    segment: int
    shared: bool


class Use(msgspec.Struct, frozen=True):
    """Put the message into that segment: a pooled one, or a new one of that capacity."""

    segment: int
    capacity: int
    new: bool


class Segment(msgspec.Struct):
    """`loans`: all and only those that have not ended, by the number of their word."""

    capacity: int
    resident: int = 0  # upper bound of the bytes with memory behind them
    held: bool = True
    spoiled: bool = False
    words: int = 0  # words taken by loans of this message, including ended ones
    loans: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    since: float = 0.0  # when it entered the pool


class Lending:
    """All segments of one process. Not thread-safe."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self._pool: dict[int, list[int]] = {}  # by capacity; the most recently used one is last
        self._pooled_bytes = 0
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self.segments)

    # --- events -----------------------------------------------------------------------------------

    def wanted(self, size: int) -> tuple[Use | None, list[Free]]:
        """A segment is needed for that many bytes; None: there are too many segments."""
        capacity = max(SMALLEST, 1 << (size - 1).bit_length())
        pool = self._pool.get(capacity)
        if pool:
            number = pool.pop()
            segment = self.segments[number]
            self._pooled_bytes -= segment.resident
            segment.held, segment.words = True, 0
            segment.resident = max(segment.resident, size)
            return Use(number, capacity, new=False), []
        freed: list[Free] = []
        if len(self.segments) >= MOST_SEGMENTS:
            oldest = self._oldest()
            if oldest is None:
                return None, []
            freed.append(self._freed(oldest))
        self._number += 1
        self.segments[self._number] = Segment(capacity, size)
        return Use(self._number, capacity, new=True), freed

    def failed(self, number: int) -> list[Free]:
        """The segment could not be made or filled."""
        self.segments[number].spoiled = True
        return self.let_go(number, 0.0)

    def lent(self, number: int, nodes: Sequence[str]) -> int | None:
        """Its message goes to these nodes: the number of the first one's word; None: too many."""
        segment = self.segments[number]
        first = segment.words
        if first + len(nodes) > MOST_LOANS:
            return None
        segment.words += len(nodes)
        segment.loans.update(enumerate(nodes, first))
        return first

    def unsent(self, number: int, words: Iterable[int], now: float) -> list[Free]:
        """The message was not sent to these receivers."""
        segment = self.segments.get(number)
        if segment is None:
            return []
        for word in words:
            segment.loans.pop(word, None)
        return self._left(number, segment, now)

    def let_go(self, number: int, now: float) -> list[Free]:
        """The sender no longer needs the segment."""
        segment = self.segments.get(number)
        if segment is None:
            return []
        segment.held = False
        return self._left(number, segment, now)

    def read(self, number: int, words: Sequence[int], now: float) -> list[Free]:
        """The words of its loans were read."""
        segment = self.segments.get(number)
        if segment is None:
            return []
        for word in [word for word in segment.loans if words[word] >= RETURNED]:
            del segment.loans[word]
            segment.spoiled |= words[word] == SPOILED
        return self._left(number, segment, now)

    def node_gone(self, node: str) -> list[Free]:
        """That receiver has ended, or can no longer be reached."""
        freed: list[Free] = []
        for number, segment in list(self.segments.items()):
            ended = [word for word, name in segment.loans.items() if name == node]
            for word in ended:
                del segment.loans[word]
                segment.spoiled = True  # the receiver, or a fork of it, may still have it mapped
            if ended:
                freed += self._left(number, segment, 0.0)
        return freed

    def renamed(self, old: str, new: str) -> None:
        """A receiver is known by another name now."""
        for segment in self.segments.values():
            for word, name in segment.loans.items():
                if name == old:
                    segment.loans[word] = new

    def time_passed(self, now: float) -> list[Free]:
        """Time has passed: free the segments that were in the pool for `POOLED_S`."""
        old = [n for pool in self._pool.values() for n in pool
               if self.segments[n].since + POOLED_S <= now]  # fmt: skip
        return [self._freed(number) for number in old]

    def closed(self) -> list[Free]:
        """This process sends nothing any more: free all segments."""
        freed = [
            Free(number, bool(segment.held or segment.loans or segment.spoiled))
            for number, segment in self.segments.items()
        ]
        self.segments.clear()
        self._pool.clear()
        self._pooled_bytes = 0
        return freed

    # --- queries ----------------------------------------------------------------------------------

    def lent_out(self) -> list[int]:
        """The segments with loans."""
        return [number for number, segment in self.segments.items() if segment.loans]

    @property
    def pooled_bytes(self) -> int:
        """Bytes of segments that wait for another message."""
        return self._pooled_bytes

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        pooled = [number for pool in self._pool.values() for number in pool]
        assert len(pooled) == len(set(pooled)), "one place in the pool"
        for capacity, pool in self._pool.items():
            assert all(self.segments[number].capacity == capacity for number in pool)
        for number, segment in self.segments.items():
            in_use = segment.held or bool(segment.loans)
            assert in_use != (number in pooled), "in use or in the pool, all and only"
            assert not (segment.spoiled and not in_use), "a spoiled segment is not pooled"
            assert all(word < segment.words <= MOST_LOANS for word in segment.loans)
            assert segment.resident <= segment.capacity
        assert self._pooled_bytes == sum(self.segments[n].resident for n in pooled)
        assert self._pooled_bytes <= POOL_BYTES
        assert len(self.segments) <= MOST_SEGMENTS

    # --- transitions ------------------------------------------------------------------------------

    def _left(self, number: int, segment: Segment, now: float) -> list[Free]:
        if segment.held or segment.loans or self._is_pooled(number, segment):
            return []
        if segment.spoiled or segment.resident > POOL_BYTES:
            return [self._dropped(number)]
        segment.since = now
        self._pool.setdefault(segment.capacity, []).append(number)
        self._pooled_bytes += segment.resident
        freed: list[Free] = []
        while self._pooled_bytes > POOL_BYTES and (oldest := self._oldest()) is not None:
            freed.append(self._freed(oldest))
        return freed

    def _is_pooled(self, number: int, segment: Segment) -> bool:
        return number in self._pool.get(segment.capacity, ())

    def _oldest(self) -> int | None:
        pooled = [number for pool in self._pool.values() for number in pool]
        return min(pooled, key=lambda number: self.segments[number].since, default=None)

    def _freed(self, number: int) -> Free:
        """Take a segment out of the pool, to be freed."""
        segment = self.segments[number]
        self._pool[segment.capacity].remove(number)
        self._pooled_bytes -= segment.resident
        return self._dropped(number)

    def _dropped(self, number: int) -> Free:
        segment = self.segments.pop(number)
        return Free(number, segment.spoiled)
