"""Slices of a track nest, every begin has its end, and calls lead to their endpoints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.telemetry.perfetto.state.clock_offset import ClockOffset
from monarch._src.telemetry.perfetto.state.trace import Slice, lanes, trace, tracks_of
from tests.traces import Trace, read

pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

PLACE = {"session": "s", "host": "h", "mesh_id": 5, "mesh": "workers", "rank": 1}
CLIENT = {"session": "s", "host": "h", "mesh_id": 0, "mesh": "client", "rank": 0}


def message(**values: Any) -> dict[str, Any]:
    return {
        **PLACE, "timestamp_us": 100, "waited_s": 10e-6, "ran_s": 20e-6, "status": "complete",
        "actor": "w", "endpoint": "step", "sender": "client-1", "from_actor_id": 9, "call": 3,
        **values,
    }  # fmt: skip


def sent(**values: Any) -> dict[str, Any]:
    return {
        **CLIENT, "timestamp_us": 90, "ended_us": 140, "actor": "w", "endpoint": "step",
        "ranks": 2, "failed": False, "sender_actor_id": 9, "call": 3, **values,
    }  # fmt: skip


def span(**values: Any) -> dict[str, Any]:
    return {
        **PLACE, "timestamp_us": 112, "duration_us": 5, "name": "load", "thread_name": "MainThread",
        "endpoint": "step", "failed": False, **values,
    }  # fmt: skip


def log(**values: Any) -> dict[str, Any]:
    return {
        **PLACE, "timestamp_us": 113, "text": "one\ntwo", "level": "WARN", "target": "l", **values,
    }  # fmt: skip


def torch_event(**values: Any) -> dict[str, Any]:
    return {
        **PLACE, "begin_ns": 114_250, "duration_ns": 500, "name": "aten::mm", "kind": "cpu_op",
        "device": "cpu", "thread_name": "MainThread", **values,
    }  # fmt: skip


def made(
    end_us: int = 1000, begin_us: int = 0, clocks: dict[str, ClockOffset] | None = None,
    **tables: Any,
) -> Trace:  # fmt: skip
    return read(trace(tracks_of(tables, begin_us * 1000, end_us * 1000, clocks or {})))


def test_a_call_leads_to_its_endpoints_by_an_arrow() -> None:
    found = made(sent_messages=[sent()], messages=[message(), message(rank=2)])
    (call,) = found.slices("client on h", "calls")
    assert (call.name, call.begin_ns, call.end_ns) == ("w.step", 90_000, 140_000)
    for rank in (1, 2):
        (handled,) = found.slices(f"workers[{rank}] on h", "endpoints of w")
        assert (handled.begin_ns, handled.end_ns) == (110_000, 130_000)
        assert handled.last_flows == call.flows
        (queued,) = found.slices(f"workers[{rank}] on h", "queue of w")
        assert (queued.begin_ns, queued.end_ns) == (100_000, 110_000)
    assert len(call.flows) == 1


def test_spans_and_log_records_have_tracks_of_their_own() -> None:
    found = made(
        spans=[span(), span(name="inner", timestamp_us=113, duration_us=2)], events=[log()]
    )
    outer, inner = found.slices("workers[1] on h", "spans of MainThread")
    assert (outer.name, outer.end_ns, inner.name) == ("load", 117_000, "inner")
    assert found.instants == [("workers[1] on h", "log records", "one", 113_000)]


def test_events_of_torch_have_tracks_by_thread_and_by_stream() -> None:
    found = made(torch_events=[
        torch_event(), torch_event(name="aten::addmm", begin_ns=114_000, duration_ns=1000),
        torch_event(name="gemm", kind="kernel", device="cuda:0", thread_name="stream 7"),
    ])  # fmt: skip
    outer, inner = found.slices("workers[1] on h", "torch on MainThread")
    assert (outer.name, inner.name) == ("aten::addmm", "aten::mm")
    assert (inner.begin_ns, inner.end_ns) == (114_250, 114_750)
    (kernel,) = found.slices("workers[1] on h", "torch on cuda:0, stream 7")
    assert kernel.name == "gemm"


def test_times_of_a_host_whose_clock_is_ahead_are_corrected_and_that_is_said() -> None:
    there = {"host": "far", "rank": 2}
    ahead_us = 5000  # all of it lies after the end of the trace by that clock
    found = made(
        clocks={"far": ClockOffset(ahead_us / 1e6, 0.0001), "h": ClockOffset(0.00001, 0.0001)},
        sent_messages=[sent()],
        messages=[
            message(),
            message(timestamp_us=100 + ahead_us, **there),
            message(timestamp_us=100 + ahead_us, ran_s=None, call=None, **there),
        ],
        events=[log(timestamp_us=113 + ahead_us, **there)],
        torch_events=[torch_event(begin_ns=114_250 + ahead_us * 1000, **there)],
    )
    (near,) = found.slices("workers[1] on h", "endpoints of w")
    running, far = found.slices("workers[2] on far", "endpoints of w")
    assert (running.begin_ns, running.end_ns) == (110_000, 1_000_000)
    assert (far.begin_ns, far.end_ns) == (near.begin_ns, near.end_ns) == (110_000, 130_000)
    (event,) = found.slices("workers[2] on far", "torch on MainThread")
    assert event.begin_ns == 114_250
    assert found.instants == [
        ("workers[2] on far", "clock", "corrected: was 5.000 ms ahead, ± 0.100 ms", 0),
        ("workers[2] on far", "log records", "one", 113_000),
    ]


def test_what_has_not_ended_goes_on_to_the_end_of_the_trace() -> None:
    found = made(
        sent_messages=[sent(ended_us=None)],
        messages=[message(ran_s=None, status="active"), message(waited_s=None, ran_s=None, call=4)],
        spans=[span(duration_us=None)],
    )
    ends = {one.track: one.end_ns for one in found.all_slices if one.end_ns == 1_000_000}
    assert set(ends) == {"calls", "endpoints of w", "queue of w", "spans of MainThread"}


def test_slices_are_cut_to_the_time_of_the_trace_and_others_left_out() -> None:
    found = made(
        begin_us=100, end_us=120,
        sent_messages=[sent(), sent(timestamp_us=1, ended_us=2), sent(timestamp_us=130)],
        events=[log(timestamp_us=99), log(timestamp_us=121)],
    )  # fmt: skip
    (call,) = found.slices("client on h", "calls")
    assert (call.begin_ns, call.end_ns) == (100_000, 120_000)
    assert found.instants == []


def test_messages_without_a_known_sender_or_number_have_no_arrow() -> None:
    found = made(messages=[message(call=None)], sent_messages=[sent(sender_actor_id=None)])
    assert all(not one.flows and not one.last_flows for one in found.all_slices)


def test_without_rows_a_trace_has_no_tracks() -> None:
    assert made().all_slices == []


TIMES = st.tuples(st.integers(0, 30), st.integers(0, 10))


@given(st.lists(TIMES, max_size=30))
def test_slices_of_a_lane_nest_and_none_is_lost(times: list[tuple[int, int]]) -> None:
    slices = [Slice(at, at + took, str(n), "", {}) for n, (at, took) in enumerate(times)]
    found = lanes(slices)
    assert sorted(one.name for lane in found for one in lane) == sorted(one.name for one in slices)
    for lane in found:
        for n, one in enumerate(lane):
            for other in lane[:n]:
                apart = other.end_ns <= one.begin_ns
                assert apart or one.end_ns <= other.end_ns, "they overlap and do not nest"


@given(st.lists(st.tuples(TIMES, st.integers(1, 2)), max_size=20))
def test_any_rows_make_a_trace_that_holds_together(
    rows: list[tuple[tuple[int, int], int]],
) -> None:
    spans = [
        span(timestamp_us=at, duration_us=took, rank=rank, name=f"{n}")
        for n, ((at, took), rank) in enumerate(rows)
    ]
    found = made(spans=spans)
    assert sorted(int(one.name) for one in found.all_slices) == list(range(len(rows)))
