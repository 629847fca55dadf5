"""Where the time of a profile went: sums by name, time of their own, the slowest rank."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.telemetry.perfetto.state.summary import (
    MOST,
    ProfileLine,
    summary,
    summary_table,
    summary_text,
    time_text,
    with_own_time,
)
from monarch._src.telemetry.perfetto.state.trace import Process, Slice, Tracks

MS = 1_000_000


def slice_of(name: str, begin_ms: int, end_ms: int, category: str = "torch") -> Slice:
    return Slice(begin_ms * MS, end_ms * MS, name, category, {})


def rank(number: int, **slices: list[Slice]) -> Tracks:
    made = Tracks(Process("s", "h", 5, number), "workers")
    made.slices.update(slices)
    return made


def test_time_of_its_own_leaves_out_what_runs_within_on_the_same_thread() -> None:
    main = [slice_of("linear", 0, 10), slice_of("addmm", 2, 8), slice_of("copy", 3, 4)]
    found = summary([rank(0, main=main, other=[slice_of("addmm", 0, 5)])])
    assert {line.name: (line.count, line.total_s, line.self_s) for line in found} == {
        "linear": (1, pytest.approx(0.010), pytest.approx(0.004)),
        "addmm": (2, pytest.approx(0.011), pytest.approx(0.010)),
        "copy": (1, pytest.approx(0.001), pytest.approx(0.001)),
    }


def test_lines_are_by_kind_and_the_slowest_rank_is_named_with_how_much_slower() -> None:
    took = {0: 2, 1: 2, 2: 6}
    ranks = [
        rank(number, endpoints=[slice_of("t.step", 0, ms, "endpoint")], spans=[
            slice_of("load", 0, 1, "span")], queue=[slice_of("t.step", 0, 9, "queue")],
            main=[slice_of("mm", 0, 1)])
        for number, ms in took.items()
    ]  # fmt: skip
    endpoint, span, torch = summary(ranks)
    assert (endpoint.kind, span.kind, torch.kind) == ("endpoint", "span", "torch")
    assert (endpoint.mesh, endpoint.name, endpoint.count) == ("workers", "t.step", 3)
    assert (endpoint.slowest, endpoint.times_median) == (2, pytest.approx(3.0))
    assert endpoint.longest_s == pytest.approx(0.006)
    _, rows, note = summary_table([endpoint, span, torch])
    assert [row[-1] for row in rows] == ["rank 2, 3.0 times the median", "", ""]
    assert note == ""


def test_calls_that_run_at_the_same_time_are_not_within_each_other() -> None:
    calls = [slice_of("a.f", 0, 10, "call"), slice_of("b.g", 2, 8, "call")]
    found = summary([rank(0, calls=calls)])
    assert [(line.name, round(line.self_s, 6)) for line in found] == [
        ("a.f", 0.010),
        ("b.g", 0.006),
    ]


def line(number: int, kind: str = "torch") -> ProfileLine:
    return ProfileLine("workers", kind, f"op{number}", 1, 1.0, 1.0, 1.0, 0, 1.0)


def test_a_table_has_some_lines_of_each_kind_and_says_how_many_more_there_are() -> None:
    head, rows, note = summary_table([line(0, "span"), *(line(n) for n in range(MOST + 3))])
    assert len(rows) == 1 + MOST
    assert all(len(row) == len(head) for row in rows)
    assert note == "3 more of kind torch: see summary()"


def test_the_text_has_a_head_line_and_aligned_columns() -> None:
    text = summary_text([line(1, "endpoint")], 2.5).splitlines()
    assert text == [
        "profile of 2.5 s",
        "mesh     kind      name  count  total  own  longest  slowest",
        "workers  endpoint  op1       1    1 s  1 s      1 s",
    ]
    assert summary_text([], 0.25) == "profile of 250 ms: nothing has run"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.345, "12.3 s"), (0.0421, "42.1 ms"), (0.0000042, "4.2 µs"), (0.0, "0 µs")],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_no_time_is_counted_twice_where_slices_nest(times: list[tuple[int, int]]) -> None:
    nested: list[Any] = []
    for begin, took in times:
        one = Slice(begin, begin + took, "", "torch", {})
        apart = all(
            one.end_ns <= other.begin_ns or one.begin_ns >= other.end_ns
            or (other.begin_ns <= one.begin_ns and one.end_ns <= other.end_ns)
            or (one.begin_ns <= other.begin_ns and other.end_ns <= one.end_ns)
            for other in nested
        )  # fmt: skip
        if apart:
            nested.append(one)
    covered = {at for one in nested for at in range(one.begin_ns, one.end_ns)}
    found = with_own_time(nested)
    assert sum(own for _, own in found) == len(covered)
    assert all(0 <= own <= one.end_ns - one.begin_ns for one, own in found)
