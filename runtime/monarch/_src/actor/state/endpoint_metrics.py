"""Metrics of endpoints: calls, durations, sizes, errors. No I/O, no clock.

Each process counts the calls that it sends and those that it runs; a reader adds up the figures of
all processes. Callers pass times, in nanoseconds of any steady clock.

Counting takes no lock, although several threads count one endpoint: with its global lock, CPython
3.10 and later switches threads only at calls and backward jumps, and an increment contains neither.
Without a global lock, an increment may be lost occasionally.

Durations are counted by quarter octaves: bucket n holds durations whose fourth power has n bits,
from 2**((n-1)/4) to 2**(n/4) ns. So a percentile is exact to a fifth, at the price of 2 KiB and two
multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil

import msgspec

from monarch._src.wire.process_codec import Figures, Key

BUCKETS = 4 * 64 + 1  # four for each power of two of 64 bits of nanoseconds, and one for 0
MOST_KEYS = 1024  # entries, from which on those of ended actors are merged
ENDED = "(ended)"  # the name of a merged entry


class EndpointCounts:
    """The metrics of one endpoint in this process, which calls it or runs it."""

    __slots__ = (
        "buckets",
        "bytes_in",
        "bytes_out",
        "calls",
        "errors",
        "max_ns",
        "since_ns",
        "total_ns",
        "untimed",
        "waited_ns",
    )

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.calls = 0
        self.untimed = 0
        self.errors = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.total_ns = 0
        self.max_ns = 0
        self.waited_ns = 0
        self.buckets = [0] * BUCKETS

    def add(self, other: EndpointCounts) -> None:
        """Add the counts of another instance, which is no longer used."""
        self.since_ns = min(self.since_ns, other.since_ns)
        self.calls += other.calls
        self.untimed += other.untimed
        self.errors += other.errors
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.total_ns += other.total_ns
        self.max_ns = max(self.max_ns, other.max_ns)
        self.waited_ns += other.waited_ns
        for bucket, count in enumerate(other.buckets):
            self.buckets[bucket] += count

    def sent(self, nbytes: int) -> None:
        """A call is sent; `nbytes` of arguments to all ranks together."""
        self.calls += 1
        self.bytes_out += nbytes

    def taken(self, nbytes: int, waited_ns: int) -> None:
        """A call with `nbytes` of arguments begins to run, after `waited_ns` in the mailbox."""
        self.calls += 1
        self.bytes_in += nbytes
        self.waited_ns += waited_ns

    def ended(self, took_ns: int) -> None:
        """A call has ended after `took_ns`."""
        squared = took_ns * took_ns
        bucket = (squared * squared).bit_length()
        self.buckets[bucket] += 1
        self.total_ns += took_ns
        if took_ns > self.max_ns:
            self.max_ns = took_ns

    def figures(self, key: Key, now_ns: int) -> Figures:
        """The present counts. Any thread."""
        # Ends are read before begins, so that no call has ended without having begun.
        buckets = tuple((n, count) for n, count in enumerate(self.buckets) if count)
        untimed = self.untimed
        return Figures(
            key, self.calls, untimed, self.errors, self.bytes_in, self.bytes_out, self.total_ns,
            self.max_ns, self.waited_ns, now_ns - self.since_ns, buckets,
        )  # fmt: skip


class MetricsTable:
    """The metrics of one process. Any thread.

    A program may give thousands of actors different names. From `MOST_KEYS` entries on, the entries
    of actors that end are merged into one entry for each class, under the name `ENDED`.
    """

    def __init__(self) -> None:
        self._counts: dict[Key, EndpointCounts] = {}

    def counts(self, key: Key, now_ns: int) -> EndpointCounts:
        """The counts of an endpoint: always the same object, which the first call creates."""
        found = self._counts.get(key)
        return self._counts.setdefault(key, EndpointCounts(now_ns)) if found is None else found

    def ended(self, mesh: int, actor: str) -> None:
        """Actors of that name have ended on that proc mesh."""
        if len(self._counts) < MOST_KEYS:
            return
        for key in list(self._counts):
            if key.mesh == mesh and key.actor == actor and not key.span:
                counts = self._counts.pop(key, None)
                if counts is not None:
                    to = msgspec.structs.replace(key, actor=ENDED)
                    self.counts(to, counts.since_ns).add(counts)

    def drop(self, mesh: int) -> None:
        """Forget the endpoints of a mesh that is gone."""
        for key in list(self._counts):
            if key.mesh == mesh:
                self._counts.pop(key, None)

    def figures(self, now_ns: int) -> list[Figures]:
        """The present counts of all endpoints."""
        return [counts.figures(key, now_ns) for key, counts in list(self._counts.items())]


def merged_buckets(histograms: Iterable[Sequence[tuple[int, int]]]) -> tuple[tuple[int, int], ...]:
    """The sum of several histograms, as sorted pairs of bucket and count."""
    found: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram:
            found[bucket] = found.get(bucket, 0) + count
    return tuple(sorted(found.items()))


def merged(parts: Sequence[Figures]) -> Figures:
    """The sum of the figures of several processes or adverbs, under the key of the first.

    Raises:
        ValueError: `parts` is empty.
    """
    if not parts:
        raise ValueError("no figures to merge")
    return Figures(
        parts[0].key,
        calls=sum(part.calls for part in parts),
        untimed=sum(part.untimed for part in parts),
        errors=sum(part.errors for part in parts),
        bytes_in=sum(part.bytes_in for part in parts),
        bytes_out=sum(part.bytes_out for part in parts),
        total_ns=sum(part.total_ns for part in parts),
        max_ns=max(part.max_ns for part in parts),
        waited_ns=sum(part.waited_ns for part in parts),
        observed_ns=max(part.observed_ns for part in parts),
        buckets=merged_buckets(part.buckets for part in parts),
    )


def mean_ns(figures: Figures) -> float | None:
    """The mean duration of a timed call; None if no timed call has ended."""
    timed = figures.timed
    return figures.total_ns / timed if timed else None


def percentile_ns(figures: Figures, share: float) -> float | None:
    """The maximal duration of that share (0 to 1) of the timed calls; None if none has ended.

    The true value lies in the same bucket, less than a fifth away; the maximum is exact.

    Raises:
        ValueError: `share` is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share}: give 0 to 1")
    timed = figures.timed
    if not timed:
        return None
    wanted = max(1, ceil(share * timed))
    if wanted == timed:
        return float(figures.max_ns)
    return min(nth_value(figures.buckets, wanted, bounds_ns), float(figures.max_ns))


def nth_value(
    buckets: Sequence[tuple[int, int]], nth: int, bounds: Callable[[int], tuple[float, float]]
) -> float:
    """The `nth` smallest value (from 1), taking values as evenly spread in each bucket."""
    before = 0
    for bucket, count in buckets:
        if before + count >= nth:
            low, high = bounds(bucket)
            return low + (high - low) * (nth - before - 0.5) / count
        before += count
    raise AssertionError(f"the buckets hold {before} values, not {nth}")


def bounds_ns(bucket: int) -> tuple[float, float]:
    """The bounds of a bucket: the first inclusive, the second exclusive."""
    return (2.0 ** ((bucket - 1) / 4), 2.0 ** (bucket / 4)) if bucket else (0.0, 1.0)
