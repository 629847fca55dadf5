"""The calls of the dashboard's timeline."""

from __future__ import annotations

from typing import Any

from monarch._src.admin.dashboard.state.timeline import MOST_CALLS, timeline_of


def message(rank: int, at_s: float, ran_s: float | None = 1.0, **fields: Any) -> dict[str, Any]:
    return {
        "mesh_id": 7, "rank": rank, "actor": "trainer", "endpoint": "step", "waited_s": 0.5,
        "timestamp_us": int(at_s * 1e6), "ran_s": ran_s,
        "status": "active" if ran_s is None else "complete", **fields,
    }  # fmt: skip


def test_a_call_begins_when_it_leaves_the_queue() -> None:
    rows = [message(1, 12, None), message(0, 10), message(0, 11, status="failed", endpoint="save")]
    found = timeline_of(rows, 7, 0.0, 20.0)
    assert (found.now, found.names) == (20.0, ["trainer.step", "trainer.save"])
    assert found.calls == [
        (0, 0, 10.5, 1.0, False),
        (0, 1, 11.5, 1.0, True),
        (1, 0, 12.5, None, False),
    ]


def test_a_call_of_a_rank_that_has_failed_has_ended_then_and_failed() -> None:
    rows = [message(0, 10, None), message(1, 10, None), message(1, 8), message(2, 10, None)]
    found = timeline_of(rows, 7, 0.0, 20.0, {1: 12.0, 2: 9.0})
    assert found.calls == [
        (1, 0, 8.5, 1.0, False),
        (0, 0, 10.5, None, False),
        (1, 0, 10.5, 1.5, True),
        (2, 0, 10.5, 0.0, True),
    ]


def test_calls_that_wait_of_other_meshes_or_that_are_known_are_left_out() -> None:
    rows = [
        message(0, 10, None, status="queued", waited_s=None), message(0, 10, mesh_id=8),
        message(0, 10), message(1, 15), message(2, 1, None),
    ]  # fmt: skip
    assert [call[0] for call in timeline_of(rows, 7, 13.0, 20.0).calls] == [2, 1]


def test_the_oldest_calls_beyond_the_most_are_cut_and_their_ranks_counted() -> None:
    rows = [message(rank, rank / 1000) for rank in range(MOST_CALLS + 3)]
    found = timeline_of(rows, 7, 0.0, 99.0)
    assert (len(found.calls), found.cut, found.calls[0][0]) == (MOST_CALLS, 3, 3)
