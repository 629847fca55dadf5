"""A network in memory that breaks, loses, doubles, delays and reorders, all from one seed.

Runs in: one thread, on a clock of its own, so that a minute of trouble takes a millisecond.
Invariants: the same seed and the same calls give the same history.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any, Protocol

import msgspec


class Trouble(msgspec.Struct, frozen=True):
    """What happens to what is sent. Rates are from 0 to 1, times are seconds.

    delay_s: the longest that anything is on its way. noticed_s: the longest until an end learns
    that its connection has broken, or no longer carries anything; None: it never does.
    """

    drop: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.01
    noticed_s: float | None = 1.0


class End(Protocol):
    """A process on the network. Each is told by whom, or to whom."""

    def connected(self, peer: str) -> None:
        """There is a connection to that one now, in place of any before."""
        ...

    def disconnected(self, peer: str) -> None:
        """There is none any more."""
        ...

    def arrived(self, peer: str, item: Any) -> None:
        """Something came."""
        ...


class MemoryNetwork:
    """Ends by name, and at most one connection between each two of them."""

    def __init__(self, seed: int, trouble: Trouble) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.trouble = trouble
        self._ends: dict[str, End] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._connections: dict[tuple[str, str], int] = {}  # as each end believes: its number
        self._real: dict[frozenset[str], int] = {}  # those that carry something
        self._silenced: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, str], float] = {}

    def join(self, name: str, end: End) -> None:
        """A process begins, or begins anew under a name that was there."""
        self._ends[name] = end

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Call that so many seconds from now."""
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_s, self._count, do))

    def run(self, duration_s: float) -> None:
        """Let that many seconds pass."""
        until = self.now + duration_s
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = until

    # --- connections ------------------------------------------------------------------------------

    def connect(self, a: str, b: str) -> bool:
        """Make a connection in place of any before; False if nothing passes between the two."""
        if self.is_cut(a, b):
            return False
        self.sever(a, b)  # an end that never hears of the new one still learns of the old one's end
        self._count += 1
        number = self._real[frozenset((a, b))] = self._count
        for one, other in ((a, b), (b, a)):
            self.later(self._some_delay(), lambda x=one, y=other: self._tell(x, y, number))
        return True

    def _tell(self, one: str, other: str, number: int) -> None:
        if self._real.get(frozenset((one, other))) != number:
            return
        self._connections[one, other] = number
        self._ends[one].connected(other)

    def sever(self, a: str, b: str) -> None:
        """Break the connection; what is on its way is gone, and each end notices in its time."""
        number = self._real.pop(frozenset((a, b)), None)
        noticed = self.trouble.noticed_s
        if number is None or noticed is None:
            return
        for one, other in ((a, b), (b, a)):
            delay = self.random.uniform(0, noticed)
            self.later(delay, lambda x=one, y=other: self._notice(x, y, number))

    def _notice(self, one: str, other: str, number: int) -> None:
        if self._connections.get((one, other)) == number:
            del self._connections[one, other]
            self._ends[one].disconnected(other)

    # --- cuts -------------------------------------------------------------------------------------

    def silence(self, source: str, target: str) -> None:
        """Drop what goes from one to the other. Heartbeats go both ways, so both notice."""
        self._silenced.add((source, target))
        noticed = self.trouble.noticed_s
        if noticed is not None:
            number = self._real.get(frozenset((source, target)))
            self.later(noticed, lambda: self._sever_if_silent(source, target, number))

    def _sever_if_silent(self, source: str, target: str, number: int | None) -> None:
        real = self._real.get(frozenset((source, target)))
        if (source, target) in self._silenced and number is not None and real == number:
            self.sever(source, target)

    def heal(self, a: str, b: str) -> None:
        """Let everything pass between the two."""
        self._silenced -= {(a, b), (b, a)}

    def is_cut(self, a: str, b: str) -> bool:
        """Whether something is dropped between the two."""
        return (a, b) in self._silenced or (b, a) in self._silenced

    # --- sending ----------------------------------------------------------------------------------

    def send(self, source: str, target: str, item: Any) -> bool:
        """Send; False if the sender knows of no connection."""
        number = self._connections.get((source, target))
        if number is None:
            return False
        trouble, rng = self.trouble, self.random
        for _ in range(2 if rng.random() < trouble.double else 1):
            if rng.random() >= trouble.drop and (source, target) not in self._silenced:
                self._carry(source, target, number, item)
        return True

    def _carry(self, source: str, target: str, number: int, item: Any) -> None:
        at = self.now + self._some_delay()
        if self.random.random() >= self.trouble.reorder:
            at = self._last[source, target] = max(at, self._last.get((source, target), 0.0))
        self.later(at - self.now, lambda: self._arrive(source, target, number, item))

    def _arrive(self, source: str, target: str, number: int, item: Any) -> None:
        # What an old connection carried is late only where things may overtake each other.
        current = self._real.get(frozenset((source, target))) == number
        if current or (self.trouble.reorder and self.random.random() < self.trouble.reorder):
            self._ends[target].arrived(source, item)

    def _some_delay(self) -> float:
        return self.random.random() * self.trouble.delay_s
