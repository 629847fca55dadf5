"""The measurements of a program: spans, counters, histograms. No I/O, no clock.

Each process keeps its own measurements, as for endpoints (`actor.state.endpoint_metrics`), without
a lock for the reason given there. Memory is bounded: the number of series is limited (a series is a
name with its attributes, or with its parent, of one actor), and further series are merged into
`(others)`.

Values of histograms are counted by quarter octaves: bucket n > 0 holds values from 2**((n-257)/4)
to 2**((n-256)/4), bucket -n the same below zero, bucket 0 zero. The outermost buckets also hold
values beyond them, so a percentile is exact to a fifth between 1e-19 and 1e19.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, frexp, inf, isfinite

from monarch._src.actor.state.endpoint_metrics import EndpointCounts, merged_buckets, nth_value
from monarch._src.wire.process_codec import Figures, Key, MeasureFigures, MeasureKey

SERIES = 1000
"""The maximal number of series of spans, and of series of instruments."""

OTHERS = "(others)"  # the series that stands for all further ones

# Each power of two has four buckets, which these fractions (of `frexp`) divide. 1 is in the bucket
# `_MIDDLE`; negative values have negative numbers.
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

    def set(self, value: float) -> None:
        """Set a gauge. A value that is not finite is counted, and the last one stays."""
        self.count += 1
        if isfinite(value):
            self.total = value
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
        """The present values. Any thread."""
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
        """The counts of a span: always the same object, or the counts of `(others)`."""
        found = self._spans.get(key)
        if found is None:
            if len(self._spans) >= self._series:
                key = Key(key.mesh, key.mesh_name, "", "", "", span=OTHERS)
            found = self._spans.setdefault(key, EndpointCounts(now_ns))
        return found

    def measure(self, key: MeasureKey) -> Measure:
        """The values of a series, or those of `(others)` of its kind."""
        found = self._measures.get(key)
        if found is None:
            if len(self._measures) >= self._series:
                key = MeasureKey(key.mesh, key.mesh_name, "", "", key.kind, OTHERS)
            found = self._measures.setdefault(key, Measure())
        return found

    def clear(self) -> None:
        """Forget all series."""
        self._spans.clear()
        self._measures.clear()

    def spans(self, now_ns: int) -> list[Figures]:
        """The present counts of all spans."""
        return [counts.figures(key, now_ns) for key, counts in list(self._spans.items())]

    def measures(self) -> list[MeasureFigures]:
        """The present values of all instruments."""
        return [measure.figures(key) for key, measure in list(self._measures.items())]


TELEMETRY = TelemetryTable()
"""The process's own table. It exists before the runtime, and in a client across sessions."""


def merged_measures(parts: Sequence[MeasureFigures]) -> MeasureFigures:
    """The sum of the figures of several processes, under the key of the first.

    Raises:
        ValueError: `parts` is empty.
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
    """The maximum of that share (0 to 1) of a histogram's values; None if it has none.

    The true value lies in the same bucket, less than a fifth away; both ends are exact.

    Raises:
        ValueError: `share` is not between 0 and 1.
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
    """The bounds of a bucket."""
    if not bucket:
        return 0.0, 0.0
    near = 2.0 ** ((abs(bucket) - _MIDDLE) / 4)
    far = 2.0 ** ((abs(bucket) - _MIDDLE + 1) / 4)
    return (near, far) if bucket > 0 else (-far, -near)


def attributes_of(given: object) -> tuple[tuple[str, str], ...]:
    """The attributes of a series, as texts, sorted by name.

    Raises:
        TypeError: `given` is no mapping.
    """
    if given is None:
        return ()
    items = getattr(given, "items", None)
    if items is None:
        raise TypeError(f"attributes are a mapping of names to values, not {given!r}")
    return tuple(sorted((str(name), str(value)) for name, value in items()))
