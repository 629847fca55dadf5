"""When the end of a link may be offered another trunk. No I/O, no clock.

One that ends has another in its place at once, with the next hello. Where several end within a
short time something on the way does not bear them, and each costs the link a break: then there is
none for a while, and one is tried. If that ends soon too, the pause is twice as long, up to
`LONGEST_S`; one that lives longer makes all of it forgotten.
"""

from __future__ import annotations

MOST = 3
FIRST_S, LONGEST_S = 60.0, 3600.0


class TrunkTries:
    """Those of one end. `count`: how many have ended since one has lived long enough."""

    def __init__(self) -> None:
        self.count = 0
        self._ended: list[float] = []  # when, of late
        self._until: float | None = None  # of the last pause
        self._pause_s = 0.0  # how long that was; 0: there was none since all went well

    def ended(self, now: float, soon_s: float) -> None:
        """A trunk has. `now`: seconds, no less than before; `soon_s`: what counts as soon."""
        self._ended = [*(at for at in self._ended if now - at < soon_s), now]
        tried = self._until is not None and now - self._until < soon_s
        if not tried:
            self.count, self._pause_s = len(self._ended) - 1, 0.0
        self.count += 1
        if tried or len(self._ended) >= MOST:
            self._pause_s = min(LONGEST_S, 2 * self._pause_s or FIRST_S)
            self._until = now + self._pause_s

    def waits_until(self, now: float) -> float | None:
        """Until when none is to be offered; None: one may be."""
        return None if self._until is None or now >= self._until else self._until
