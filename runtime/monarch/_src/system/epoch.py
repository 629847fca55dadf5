"""The distance between the monotonic clock and the time of day."""

from __future__ import annotations

from time import monotonic_ns, time_ns

CLOSE_NS = 20_000
TRIES = 10


def epoch_ns() -> int:
    """The monotonic clock's zero in nanoseconds since 1970.

    The two clocks cannot be read at once, and a busy system may run others in between. So the
    closest of several readings counts.
    """
    best = best_gap = 0
    for attempt in range(TRIES):
        before = monotonic_ns()
        now = time_ns()
        gap = monotonic_ns() - before
        if not attempt or gap < best_gap:
            best, best_gap = now - before - gap // 2, gap
        if best_gap <= CLOSE_NS:
            break
    return best
