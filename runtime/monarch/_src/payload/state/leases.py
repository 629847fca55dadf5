"""The segments that a process lends to those it sends large payloads to. No I/O, no clock.

A segment holds the large parts of one message at a time. Its sender *holds* it while it may send
that message to somebody, and each receiver has a *loan* of it from the moment that the message is
sent to it until the last view of what came is gone. With neither, a segment waits in the pool for
the next message, or is freed. What becomes of one, by what happens to it:

    state     lent       loan ended   let go      nobody left            aged     wanted
    HELD      one more   one less     not held    POOLED, or freed       -        -
    POOLED    -          -            -           -                      freed    HELD

It is never used again while anybody may still see it: one whose receiver died, or has forked since,
is *spoiled*, and freed without its memory being taken from whoever has it mapped.

The driver is `monarch._src.payload.sender`. Events are methods named in the past tense; those after
which segments are to be freed return these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

LENT, TAKEN, RETURNED, SPOILED = 0, 1, 2, 3  # the word of a loan, which its receiver writes
SMALLEST = 1 << 17  # bytes of a segment, whatever is in it
MOST_SEGMENTS = 128  # each has a descriptor
MOST_LOANS = 4080  # of one message: words in front of the payload
POOL_BYTES = 1 << 28  # of what waits for a next message
POOLED_S = 2.0  # for how long it waits


class Free(msgspec.Struct, frozen=True):
    """Give a segment back to the system; `shared`: others may still see it, and go on to."""

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
    resident: int = 0  # bytes, at most, that have memory behind them
    held: bool = True
    spoiled: bool = False
    words: int = 0  # the loans of this message, ended ones among them
    loans: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    since: float = 0.0  # when it came into the pool


class Lending:
    """All segments of one process. Not thread-safe."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self._pool: dict[int, list[int]] = {}  # by capacity; the last one was used last
        self._pooled_bytes = 0
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self.segments)

    # --- events -----------------------------------------------------------------------------------

    def wanted(self, size: int) -> tuple[Use | None, list[Free]]:
        """A message of that many bytes is to be put into one; None: there are too many."""
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
        """It could not be made, or not be filled."""
        self.segments[number].spoiled = True
        return self.let_go(number, 0.0)

    def lent(self, number: int, nodes: Sequence[str]) -> int | None:
        """Its message goes to these: the number of the first one's word, or None: too many."""
        segment = self.segments[number]
        first = segment.words
        if first + len(nodes) > MOST_LOANS:
            return None
        segment.words += len(nodes)
        segment.loans.update(enumerate(nodes, first))
        return first

    def unsent(self, number: int, words: Iterable[int], now: float) -> list[Free]:
        """Those have not got the message, and will not."""
        segment = self.segments.get(number)
        if segment is None:
            return []
        for word in words:
            segment.loans.pop(word, None)
        return self._left(number, segment, now)

    def let_go(self, number: int, now: float) -> list[Free]:
        """Its message is not sent to anybody any more."""
        segment = self.segments.get(number)
        if segment is None:
            return []
        segment.held = False
        return self._left(number, segment, now)

    def read(self, number: int, words: Sequence[int], now: float) -> list[Free]:
        """These are the words of its loans as they stand."""
        segment = self.segments.get(number)
        if segment is None:
            return []
        for word in [word for word in segment.loans if words[word] >= RETURNED]:
            del segment.loans[word]
            segment.spoiled |= words[word] == SPOILED
        return self._left(number, segment, now)

    def node_gone(self, node: str) -> list[Free]:
        """That receiver has ended, or is nobody's to send to any more."""
        freed: list[Free] = []
        for number, segment in list(self.segments.items()):
            ended = [word for word, name in segment.loans.items() if name == node]
            for word in ended:
                del segment.loans[word]
                segment.spoiled = True  # who began with it may have it mapped, and a fork of it
            if ended:
                freed += self._left(number, segment, 0.0)
        return freed

    def renamed(self, old: str, new: str) -> None:
        """A receiver is known by another name now."""
        for segment in self.segments.values():
            for word, name in segment.loans.items():
                if name == old:
                    segment.loans[word] = new

    def looked(self, now: float) -> list[Free]:
        """Time has passed: what has waited too long for a next message goes."""
        old = [n for pool in self._pool.values() for n in pool
               if self.segments[n].since + POOLED_S <= now]  # fmt: skip
        return [self._freed(number) for number in old]

    def closed(self) -> list[Free]:
        """This process sends nothing any more."""
        freed = [
            Free(number, bool(segment.held or segment.loans or segment.spoiled))
            for number, segment in self.segments.items()
        ]
        self.segments.clear()
        self._pool.clear()
        self._pooled_bytes = 0
        return freed

    # --- what is so -------------------------------------------------------------------------------

    def lent_out(self) -> list[int]:
        """The segments that somebody has a loan of."""
        return [number for number, segment in self.segments.items() if segment.loans]

    @property
    def pooled_bytes(self) -> int:
        """Memory that waits for a next message."""
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
            assert not (segment.spoiled and not in_use), "what is spoiled is not kept"
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
        """Out of the pool."""
        segment = self.segments[number]
        self._pool[segment.capacity].remove(number)
        self._pooled_bytes -= segment.resident
        return self._dropped(number)

    def _dropped(self, number: int) -> Free:
        segment = self.segments.pop(number)
        return Free(number, segment.spoiled)
