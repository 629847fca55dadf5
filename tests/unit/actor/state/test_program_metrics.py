"""What programs measure: nothing is lost, percentiles are near, and memory is bounded."""

from __future__ import annotations

import math
from math import ceil, inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.actor.state.program_metrics import (
    OTHERS,
    Measure,
    TelemetryTable,
    attributes_of,
    bounds,
    bucket_of,
    merged_measures,
    quantile,
)
from monarch._src.wire.process_codec import (
    Counted,
    Key,
    MeasureFigures,
    MeasureKey,
    packed_metrics,
    unpacked_metrics,
)

KEY = MeasureKey(7, "workers", "Trainer", "trainers", "histogram", "loss")
A_FIFTH = 2 ** (1 / 4) * (1 + 1e-9)

near = st.floats(1e-18, 1e18)
values = st.one_of(near, near.map(lambda value: -value), st.just(0.0))


def recorded(given: list[float]) -> MeasureFigures:
    measure = Measure()
    for value in given:
        measure.record(value)
    return measure.figures(KEY)


@given(values)
def test_a_value_is_in_its_bucket(value: float) -> None:
    low, high = bounds(bucket_of(value))
    assert low * (1 - 1e-9 * math.copysign(1, low)) <= value
    assert value <= high * (1 + 1e-9 * math.copysign(1, high))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_there_are_so_many_buckets_however_great_a_value(value: float) -> None:
    assert abs(bucket_of(value)) <= 512


@given(st.lists(values, min_size=1), st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_less_than_a_fifth_off(given: list[float], share: float) -> None:
    true = sorted(given)[max(1, ceil(share * len(given))) - 1]
    found = quantile(recorded(given), share)
    assert found is not None
    assert math.copysign(1, found or 1.0) == math.copysign(1, true or 1.0)
    assert abs(true) / A_FIFTH <= abs(found) <= abs(true) * A_FIFTH


@given(st.lists(st.lists(values, max_size=6), min_size=1, max_size=6))
def test_what_several_were_given_adds_up_to_what_one_would_have(parts: list[list[float]]) -> None:
    whole = recorded([value for part in parts for value in part])
    total = merged_measures([recorded(part) for part in parts])
    assert (total.key, total.count, total.buckets) == (KEY, whole.count, whole.buckets)
    assert (total.low, total.high) == (whole.low, whole.high)
    assert total.total == pytest.approx(whole.total, rel=1e-6, abs=1e6)


def test_what_is_no_number_is_counted_apart_and_spoils_nothing() -> None:
    found = recorded([1.0, nan, 3.0, inf, -inf])
    assert (found.count, found.not_finite, found.total) == (5, 3, 4.0)
    assert (found.low, found.high, quantile(found, 1.0)) == (1.0, 3.0, 3.0)


def test_of_no_values_there_is_no_percentile_and_of_nothing_no_sum() -> None:
    assert quantile(recorded([]), 0.5) is None
    with pytest.raises(ValueError, match="no figures"):
        merged_measures([])
    with pytest.raises(ValueError, match="give 0 to 1"):
        quantile(recorded([1.0]), 1.5)


def test_a_series_is_one_object_and_others_are_others() -> None:
    table = TelemetryTable()
    key = Key(7, "workers", "Trainer", "trainers", "step", span="load")
    other = Key(7, "workers", "Trainer", "trainers", "step", span="load", parent="warm-up")
    assert table.span(key, 1) is table.span(key, 2)
    assert table.span(key, 3) is not table.span(other, 3)
    assert table.measure(KEY) is table.measure(KEY)
    with_attribute = msgspec.structs.replace(KEY, attributes=(("phase", "eval"),))
    assert table.measure(KEY) is not table.measure(with_attribute)


def test_memory_is_bounded_and_nothing_that_is_given_is_lost() -> None:
    table = TelemetryTable(series=3)
    for number in range(100):
        key = Key(7, "workers", "Trainer", f"trainer{number}", "step", span=f"{number}")
        table.span(key, 0).taken(0, 0)
        measure = MeasureKey(7, "workers", "Trainer", "trainers", "counter", f"{number}")
        table.measure(measure).add(2.0)
    spans, measures = table.spans(0), table.measures()
    assert [found.key.span for found in spans] == ["0", "1", "2", OTHERS]
    assert [found.key.name for found in measures] == ["0", "1", "2", OTHERS]
    assert [found.calls for found in spans] == [1, 1, 1, 97]
    assert [found.total for found in measures] == [2.0, 2.0, 2.0, 194.0]


def test_attributes_are_texts_in_the_order_of_their_names() -> None:
    assert attributes_of({"b": 1, "a": True}) == (("a", "True"), ("b", "1"))
    assert attributes_of(None) == attributes_of({}) == ()
    with pytest.raises(TypeError, match="a mapping of names to values"):
        attributes_of(["a"])


def test_figures_travel() -> None:
    table = TelemetryTable()
    table.span(Key(7, "workers", "Trainer", "trainers", "step", span="load"), 1).ended(5)
    counted = Counted(tuple(table.spans(9)), (recorded([1.0, -2.5, nan]), recorded([])))
    assert unpacked_metrics(packed_metrics(counted)) == counted
