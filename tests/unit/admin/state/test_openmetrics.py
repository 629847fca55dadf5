from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from monarch._src.admin.state.openmetrics import exposition, sanitized

PLACE = {"session": "abc", "host": "here", "mesh": "workers", "rank": 0, "actor": "w"}


def parsed(tables: dict[str, list[dict[str, Any]]]) -> dict[str, Metric]:
    """The families that a scraper reads."""
    text = exposition(tables, 2)
    return {family.name: family for family in text_string_to_metric_families(text)}


def a_sum(name: str, value: float, *, counter: bool = True, **attributes: str) -> dict[str, Any]:
    return {
        **PLACE, "name": name, "unit": "", "is_monotonic": counter, "sum_f64": value,
        "attributes_json": json.dumps(attributes),
    }  # fmt: skip


def a_histogram(name: str, buckets: dict[float, int], total: float) -> dict[str, Any]:
    return {
        **PLACE, "name": name, "unit": "s", "count": sum(buckets.values()), "sum_f64": total,
        "bounds_json": json.dumps(list(buckets)),
        "bucket_counts_json": json.dumps(list(buckets.values())), "attributes_json": "{}",
    }  # fmt: skip


def test_without_rows_the_text_says_what_is_missing() -> None:
    found = parsed({})
    assert found["monarch_scrape_missing"].samples[0].value == 2


def test_ranks_are_counted_by_state_and_a_state_without_ranks_is_zero() -> None:
    row = {
        **PLACE, "state": "failed", "messages": 3, "errors": 1, "busy_s": 0.5, "restarts": 0,
        "rss_bytes": None, "since_s": 1.5,
    }  # fmt: skip
    found = parsed({"procs": [row, {**row, "rank": 1, "state": "busy"}]})
    states = {s.labels["state"]: s.value for s in found["monarch_procs"].samples}
    assert states == {
        "starting": 0, "idle": 0, "busy": 1, "paused": 0, "suspended": 0, "failed": 1,
        "stopped": 0,
    }  # fmt: skip
    assert [s.value for s in found["monarch_proc_messages"].samples] == [3, 3]
    assert found["monarch_proc_resident_memory_bytes"].samples == []  # not known: no value


def test_a_counter_of_the_program_has_the_end_that_the_format_wants() -> None:
    found = parsed({"metric_sums": [a_sum("tokens.total", 5.0), a_sum("depth", -2, counter=False)]})
    counter = found["monarch_program_tokens"]
    assert (counter.type, counter.samples[0].name) == ("counter", "monarch_program_tokens_total")
    assert found["monarch_program_depth"].samples[0].value == -2


def test_buckets_are_cumulative_and_end_at_infinity() -> None:
    rows = [a_histogram("lat", {2.0: 3, 0.5: 1}, 4.5), a_histogram("lat", {2.0: 1}, 2.0)]
    samples = parsed({"metric_histograms": rows})["monarch_program_lat"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert buckets == {"0.5": 1, "2.0": 5, "+Inf": 5}
    assert {s.name.rpartition("_")[2]: s.value for s in samples} | {"bucket": 5} == {
        "bucket": 5, "count": 5, "sum": 6.5,
    }  # fmt: skip


def test_a_histogram_of_negative_values_has_no_sum() -> None:
    found = parsed({"metric_histograms": [a_histogram("delta", {-1.0: 1, 1.0: 1}, 0.0)]})
    names = {sample.name for sample in found["monarch_program_delta"].samples}
    assert names == {"monarch_program_delta_bucket"}


def test_instruments_of_one_name_and_two_types_are_two_families() -> None:
    found = parsed({
        "metric_sums": [a_sum("x", 1.0)], "metric_histograms": [a_histogram("x", {1.0: 1}, 1.0)],
    })  # fmt: skip
    assert {"monarch_program_x_counter", "monarch_program_x_histogram"} <= set(found)


def test_attributes_do_not_hide_the_place() -> None:
    row = a_sum("x", 1.0, mesh="theirs", __name__="y", le="3")
    (sample,) = parsed({"metric_sums": [row]})["monarch_program_x"].samples
    assert sample.labels["mesh"] == "workers"
    assert sample.labels["attribute_mesh"] == "theirs"
    assert sample.labels["attribute_le"] == "3"


def test_series_that_become_equal_are_added_up() -> None:
    dotted: dict[str, Any] = {"a.b": "1"}
    dashed: dict[str, Any] = {"a-b": "1"}
    rows = [a_sum("x", 1.0, **dotted), a_sum("x", 2.0, **dashed)]
    (sample,) = parsed({"metric_sums": rows})["monarch_program_x"].samples
    assert sample.value == 3


@pytest.mark.parametrize(("name", "found"), [("a.b", "a_b"), ("", "_"), ("9a", "_9a"), ("é", "_")])
def test_names_lose_the_signs_that_the_format_lacks(name: str, found: str) -> None:
    assert sanitized(name) == found


@given(
    st.text(min_size=1, max_size=20),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4),
    st.one_of(st.floats(0, 1e300), st.just(math.inf)),
    st.booleans(),
)
def test_a_scraper_can_read_whatever_a_program_names_its_instruments(
    name: str, attributes: dict[str, str], value: float, counter: bool
) -> None:
    row = {**a_sum(name, value, counter=counter), "attributes_json": json.dumps(attributes)}
    families = [n for n in parsed({"metric_sums": [row]}) if n.startswith("monarch_program")]
    assert len(families) == 1
