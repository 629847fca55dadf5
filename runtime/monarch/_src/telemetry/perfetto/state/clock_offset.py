"""How far the clock of another host is ahead, from readings of it. No I/O, no clock.

A reading says when it was asked for and answered by this clock, and what the other clock showed in
between. So each reading bounds the offset from both sides, and several together bound it closer,
as in NTP. Clocks of one host differ by less than these bounds, and are not corrected.
"""

from __future__ import annotations

from typing import NamedTuple

NS_PER_S = 1_000_000_000


class ClockOffset(NamedTuple):
    """The clock of a host is `seconds` ahead of this one, or less or more by `uncertainty_s`."""

    seconds: float
    uncertainty_s: float

    @property
    def correction_ns(self) -> int:
        """The time to take off; 0 if the clocks may agree."""
        if abs(self.seconds) <= self.uncertainty_s:
            return 0
        return round(self.seconds * NS_PER_S)

    def __str__(self) -> str:
        ahead = "ahead" if self.seconds > 0 else "behind"
        return f"{abs(self.seconds) * 1e3:.3f} ms {ahead}, ± {self.uncertainty_s * 1e3:.3f} ms"


class OffsetBounds:
    """The bounds of an offset, in nanoseconds."""

    def __init__(self) -> None:
        self._low_ns: int | None = None
        self._high_ns = 0

    def add(self, asked_ns: int, read_us: int, answered_ns: int) -> None:
        """Take a reading. `read_us`: the whole microseconds that the other clock showed."""
        low_ns = read_us * 1000 - answered_ns
        high_ns = read_us * 1000 + 999 - asked_ns
        if self._low_ns is None or low_ns > self._high_ns or high_ns < self._low_ns:
            # The first one, or a clock has been set since the readings before.
            self._low_ns, self._high_ns = low_ns, high_ns
        else:
            self._low_ns = max(self._low_ns, low_ns)
            self._high_ns = min(self._high_ns, high_ns)

    def offset(self) -> ClockOffset | None:
        """The middle of the bounds; None without a reading."""
        if self._low_ns is None:
            return None
        middle, half = (self._low_ns + self._high_ns) / 2, (self._high_ns - self._low_ns) / 2
        return ClockOffset(middle / NS_PER_S, half / NS_PER_S)
