"""Counts of endpoints: nothing is lost, wherever it was counted, and percentiles are near."""

from __future__ import annotations

import sys
import threading
from math import ceil, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.actor.state.endpoint_metrics import (
    BUCKETS,
    EndpointCounts,
    MetricsTable,
    bounds_ns,
    mean_ns,
    merged,
    percentile_ns,
)
from monarch._src.wire.process_codec import Figures, Key

KEY = Key(7, "workers", "Trainer", "trainers", "step")
A_FIFTH = 2 ** (1 / 4)

times = st.integers(0, 2**62)
sizes = st.integers(0, 2**40)
calls = st.tuples(times, sizes, sizes, st.booleans())


def counted(made: list[tuple[int, int, int, bool]], since: int = 0) -> EndpointCounts:
    """A callee that ran these: for how long, bytes in and out, whether it failed."""
    counts = EndpointCounts(since)
    for took, bytes_in, bytes_out, failed in made:
        counts.taken(bytes_in, took // 2)
        counts.ended(took)
        counts.bytes_out += bytes_out
        counts.errors += failed
    return counts


def figures(made: list[tuple[int, int, int, bool]], since: int = 0) -> Figures:
    return counted(made, since).figures(KEY, 2**62)


@given(st.lists(calls))
def test_figures_are_the_sums_of_what_was_counted(made: list[tuple[int, int, int, bool]]) -> None:
    found = figures(made, since=2**61)
    assert found.key is KEY
    assert (found.calls, found.timed, found.in_flight) == (len(made), len(made), 0)
    assert found.errors == sum(failed for *_, failed in made)
    assert found.bytes_in == sum(size for _, size, _, _ in made)
    assert found.bytes_out == sum(size for _, _, size, _ in made)
    assert found.total_ns == sum(took for took, *_ in made)
    assert found.max_ns == max((took for took, *_ in made), default=0)
    assert found.waited_ns == sum(took // 2 for took, *_ in made)
    assert found.observed_ns == 2**61


@given(st.lists(st.lists(calls, max_size=8), min_size=1, max_size=8), st.randoms())
def test_what_several_have_counted_adds_up_to_what_one_would_have(
    made: list[list[tuple[int, int, int, bool]]], random: Any
) -> None:
    parts = [figures(part) for part in made]
    whole = figures([call for part in made for call in part])
    assert merged(parts) == whole
    random.shuffle(parts)
    assert merged(parts) == whole
    assert merged([merged(parts[:1]), *parts[1:]]) == whole


def test_they_were_observed_for_as_long_as_the_first_of_them() -> None:
    parts = [EndpointCounts(since).figures(KEY, 100) for since in (40, 10, 70)]
    assert merged(parts).observed_ns == 90


def test_there_is_no_sum_of_nothing() -> None:
    with pytest.raises(ValueError, match="no figures"):
        merged([])


@given(st.lists(times, min_size=1), st.floats(0, 1))
def test_a_percentile_is_less_than_a_fifth_away_and_never_above_the_longest(
    took: list[int], share: float
) -> None:
    true = sorted(took)[max(1, ceil(share * len(took))) - 1]
    found = percentile_ns(figures([(t, 0, 0, False) for t in took]), share)
    assert found is not None
    assert found <= float(max(took))
    if true:
        assert true / A_FIFTH <= found * (1 + 1e-9)
        assert found <= true * A_FIFTH * (1 + 1e-9)
    else:
        assert found < 1


@given(st.lists(times, min_size=1), st.lists(st.floats(0, 1), min_size=2))
def test_a_larger_share_takes_no_less(took: list[int], shares: list[float]) -> None:
    of = figures([(t, 0, 0, False) for t in took])
    found = [percentile_ns(of, share) or 0.0 for share in sorted(shares)]
    assert found == sorted(found)


def test_all_of_them_took_at_most_the_longest_one() -> None:
    assert percentile_ns(figures([(1000, 0, 0, False)] * 3), 1.0) == 1000
    with pytest.raises(ValueError, match="give 0 to 1"):
        percentile_ns(figures([(1000, 0, 0, False)]), 1.5)


def test_where_none_has_ended_there_is_no_mean_and_no_percentile() -> None:
    counts = EndpointCounts(0)
    counts.sent(100)
    running = counts.figures(KEY, 5)
    assert (running.calls, running.in_flight) == (1, 1)
    assert mean_ns(running) is None
    assert percentile_ns(running, 0.5) is None
    counts.ended(40)
    assert counts.figures(KEY, 5).in_flight == 0
    assert mean_ns(counts.figures(KEY, 5)) == 40


def test_what_nobody_waits_for_is_in_flight_at_no_time_and_has_none() -> None:
    counts = EndpointCounts(0)
    counts.sent(100)
    counts.untimed += 1
    found = counts.figures(KEY, 5)
    assert (found.calls, found.in_flight, found.timed, found.bytes_out) == (1, 0, 0, 100)
    assert mean_ns(found) is None


@given(times)
def test_a_time_lies_within_the_bounds_of_its_bucket(took: int) -> None:
    ((bucket, count),) = figures([(took, 0, 0, False)]).buckets
    low, high = bounds_ns(bucket)
    assert count == 1
    assert low * (1 - 1e-12) <= took <= high * (1 + 1e-12)
    assert bounds_ns(bucket + 1)[0] == high


def test_the_longest_time_that_a_clock_of_64_bits_can_tell_has_a_bucket() -> None:
    ((bucket, _),) = figures([(2**64 - 1, 0, 0, False)]).buckets
    assert bucket == BUCKETS - 1
    assert bounds_ns(bucket)[1] == 2.0**64 < inf


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="needs the interpreter's lock"
)
def test_threads_that_count_at_once_lose_nothing() -> None:
    counts = EndpointCounts(0)
    threads, each = 4, 20_000

    def work() -> None:
        for number in range(each):
            counts.sent(3)
            counts.taken(5, 7)
            counts.ended(number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    found = counts.figures(KEY, 0)
    assert found.calls == 2 * threads * each
    assert found.timed == threads * each
    assert found.bytes_out == 3 * threads * each
    assert (found.bytes_in, found.waited_ns) == (5 * threads * each, 7 * threads * each)
    assert found.total_ns == threads * sum(range(each))
    assert found.max_ns == each - 1


class TestTable:
    def test_an_endpoint_has_the_same_counts_every_time(self) -> None:
        table = MetricsTable()
        counts = table.counts(KEY, 10)
        again = Key(7, "workers", "Trainer", "trainers", "step")
        assert table.counts(again, 20) is counts
        assert counts.since_ns == 10

    def test_each_endpoint_and_each_adverb_is_counted_by_itself(self) -> None:
        table = MetricsTable()
        keys = [KEY, Key(7, "workers", "Trainer", "trainers", "step", "call"), Key(8, *KEY_REST)]
        for number, key in enumerate(keys):
            for _ in range(number + 1):
                table.counts(key, 0).sent(1)
        assert [(f.key, f.calls) for f in table.figures(0)] == [*zip(keys, (1, 2, 3), strict=True)]

    def test_of_a_mesh_that_is_gone_nothing_is_kept(self) -> None:
        table = MetricsTable()
        other = Key(8, *KEY_REST)
        table.counts(KEY, 0).sent(1)
        table.counts(other, 0).sent(1)
        table.drop(7)
        assert [found.key for found in table.figures(0)] == [other]
        table.drop(7)


KEY_REST = ("workers", "Trainer", "trainers", "step")
