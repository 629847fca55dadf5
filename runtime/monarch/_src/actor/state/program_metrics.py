"""What a program measures of itself: spans, counters, histograms. No I/O, no clock.

A process keeps what it measures by itself, as it does of endpoints
(`actor.state.endpoint_metrics`), and adding takes no lock for the reason given there. Memory is
bounded: there are so many series (a name with its attributes, or with its parent, of one actor),
and what comes after those is kept together, as `(others)`.

Values of histograms are kept by quarter octave, as durations are: bucket n > 0 holds those from
2**((n-257)/4) to 2**((n-256)/4), bucket -n the same below zero, bucket 0 zero. The first and the
last one hold what is nearer to zero, or further from it, too; so a percentile is known to a fifth
between 1e-19 and 1e19.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, frexp, inf, isfinite

from monarch._src.actor.state.endpoint_metrics import EndpointCounts, merged_buckets, nth_value
from monarch._src.wire.metrics_codec import Figures, Key, MeasureFigures, MeasureKey

SERIES = 1000
"""So many series of spans, and as many of instruments, a process tells apart."""

OTHERS = "(others)"

_QUARTERS = (2**-0.75, 2**-0.5, 2**-0.25)
_MIDDLE = 257


class Measure:
    """One series of one instrument."""

    __slots__ = ("buckets", "count", "high", "low", "not_finite", "total")

    def __init__(self) -> None:
        self.count = 0
        self.not_finite = 0
        self.total = 0.0
        self.low = inf
        self.high = -inf
        self.buckets: dict[int, int] = {}

    def add(self, amount: float) -> None:
        """Add to a counter."""
        self.count += 1
        if isfinite(amount):
            self.total += amount
        else:
            self.not_finite += 1

    def record(self, value: float) -> None:
        """Add a value to a histogram."""
        if isfinite(value):
            bucket = bucket_of(value)
            if value < self.low:
                self.low = value
            if value > self.high:
                self.high = value
            self.buckets.setdefault(bucket, 0)
            self.buckets[bucket] += 1
        self.add(value)

    def figures(self, key: MeasureKey) -> MeasureFigures:
        """All of it at this moment. Any thread."""
        buckets = tuple(sorted(self.buckets.copy().items()))
        return MeasureFigures(
            key, self.count, self.not_finite, self.total, self.low, self.high, buckets
        )


class TelemetryTable:
    """The spans and instruments of one process. Any thread."""

    def __init__(self, series: int = SERIES) -> None:
        self._series = series
        self._spans: dict[Key, EndpointCounts] = {}
        self._measures: dict[MeasureKey, Measure] = {}

    def span(self, key: Key, now_ns: int) -> EndpointCounts:
        """The counts of that span: the same object every time, or what counts it with others."""
        found = self._spans.get(key)
        if found is None:
            if len(self._spans) >= self._series:
                key = Key(key.mesh, key.mesh_name, "", "", "", span=OTHERS)
            found = self._spans.setdefault(key, EndpointCounts(now_ns))
        return found

    def measure(self, key: MeasureKey) -> Measure:
        """What that series was given, or what has it with others of its kind."""
        found = self._measures.get(key)
        if found is None:
            if len(self._measures) >= self._series:
                key = MeasureKey(key.mesh, key.mesh_name, "", "", key.kind, OTHERS)
            found = self._measures.setdefault(key, Measure())
        return found

    def clear(self) -> None:
        """Forget all of it."""
        self._spans.clear()
        self._measures.clear()

    def spans(self, now_ns: int) -> list[Figures]:
        """What was counted of spans."""
        return [counts.figures(key, now_ns) for key, counts in list(self._spans.items())]

    def measures(self) -> list[MeasureFigures]:
        """What instruments were given."""
        return [measure.figures(key) for key, measure in list(self._measures.items())]


TELEMETRY = TelemetryTable()
"""Those of this process, from before its runtime, and in a client from session to session."""


def merged_measures(parts: Sequence[MeasureFigures]) -> MeasureFigures:
    """The sum of what several processes were given; the key is that of the first.

    Raises:
        ValueError: there is nothing to add.
    """
    if not parts:
        raise ValueError("no figures to merge")
    return MeasureFigures(
        parts[0].key,
        count=sum(part.count for part in parts),
        not_finite=sum(part.not_finite for part in parts),
        total=sum(part.total for part in parts),
        low=min(part.low for part in parts),
        high=max(part.high for part in parts),
        buckets=merged_buckets(part.buckets for part in parts),
    )


def quantile(figures: MeasureFigures, share: float) -> float | None:
    """What that share of a histogram's values, from 0 to 1, is at most; None if it has none.

    The true value lies in the same bucket, so it is less than a fifth away; both ends are exact.

    Raises:
        ValueError: another share.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share}: give 0 to 1")
    filled = sum(count for _, count in figures.buckets)
    if not filled:
        return None
    wanted = max(1, ceil(share * filled))
    if wanted == filled:
        return figures.high
    return min(max(nth_value(figures.buckets, wanted, bounds), figures.low), figures.high)


def bucket_of(value: float) -> int:
    """The number of the bucket of a finite value."""
    if not value:
        return 0
    fraction, exponent = frexp(abs(value))
    quarter = sum(fraction >= bound for bound in _QUARTERS)
    nth = min(max((exponent - 1) * 4 + quarter + _MIDDLE, 1), 2 * _MIDDLE - 2)
    return nth if value > 0 else -nth


def bounds(bucket: int) -> tuple[float, float]:
    """Between which two values a bucket reaches."""
    if not bucket:
        return 0.0, 0.0
    near = 2.0 ** ((abs(bucket) - _MIDDLE) / 4)
    far = 2.0 ** ((abs(bucket) - _MIDDLE + 1) / 4)
    return (near, far) if bucket > 0 else (-far, -near)


def attributes_of(given: object) -> tuple[tuple[str, str], ...]:
    """Attributes as they are told apart: texts, in the order of their names.

    Raises:
        TypeError: it is no mapping.
    """
    if given is None:
        return ()
    items = getattr(given, "items", None)
    if items is None:
        raise TypeError(f"attributes are a mapping of names to values, not {given!r}")
    return tuple(sorted((str(name), str(value)) for name, value in items()))
