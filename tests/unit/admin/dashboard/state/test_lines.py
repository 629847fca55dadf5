"""Pages of lines of the dashboard."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.admin.dashboard.state.lines import PAGE, lines_of

POINTS = {(7, rank): {"gpus": rank} for rank in range(4)} | {(8, 0): {"gpus": 0}}


def line(number: int, rank: int, text: str, **fields: Any) -> dict[str, Any]:
    return {
        "host": "h", "number": number, "timestamp_us": number * 1_000_000, "mesh": "workers",
        "mesh_id": 7, "rank": rank, "stream": "stdout", "text": text, **fields,
    }  # fmt: skip


def test_equal_lines_of_several_ranks_are_one_fold() -> None:
    rows = [line(1, 0, "a"), line(2, 1, "a"), line(3, 2, "a"), line(4, 1, "b")]
    found = lines_of(rows, POINTS)
    assert [(one.points, one.text) for one in found.folds] == [("gpus=0..2", "a"), ("gpus=1", "b")]
    assert [(one.where, one.at) for one in found.folds[0].each] == [
        ("gpus=0", 1.0),
        ("gpus=1", 2.0),
        ("gpus=2", 3.0),
    ]


def test_streams_are_not_folded_together() -> None:
    rows = [line(1, 0, "a"), line(2, 1, "a", stream="stderr")]
    assert [one.stream for one in lines_of(rows, POINTS).folds] == ["stdout", "stderr"]


def test_of_several_meshes_each_line_names_its_own() -> None:
    rows = [line(1, 0, "a"), line(2, 0, "a", mesh="later", mesh_id=8)]
    folds = lines_of(rows, POINTS).folds
    assert [one.points for one in folds] == ["workers gpus=0", "later gpus=0"]


def test_lines_are_chosen_by_mesh_rank_and_text() -> None:
    rows = [line(1, 0, "loss 1"), line(2, 1, "loss 2"), line(3, 1, "ok"), line(4, 2, "loss 3")]
    found = lines_of(rows, POINTS, mesh="workers", ranks=[1, 2], grep=r"loss \d")
    assert [one.text for one in found.folds] == ["loss 2", "loss 3"]
    assert lines_of(rows, POINTS, mesh="other").total == 0
    with pytest.raises(ValueError, match=r"\( is not a regular expression"):
        lines_of(rows, POINTS, grep="(")


def test_pages_are_counted_from_the_oldest() -> None:
    rows = [line(number, 0, str(number)) for number in range(2 * PAGE + 1)]
    newest = lines_of(rows, POINTS, given_up=3)
    assert (newest.page, newest.pages, newest.first, newest.last) == (3, 3, 1001, 1001)
    assert newest.given_up == 3
    oldest = lines_of(rows, POINTS, page=1)
    assert (oldest.first, oldest.last, oldest.total) == (1, PAGE, 2 * PAGE + 1)
    assert lines_of(rows, POINTS, page=99).page == 3
    nothing = lines_of([], POINTS)
    assert (nothing.page, nothing.first, nothing.last, nothing.folds) == (1, 0, 0, [])


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), max_size=30))
def test_every_line_is_in_one_fold_and_lines_of_a_rank_keep_their_order(
    written: list[tuple[int, str]],
) -> None:
    rows = [line(number, rank, text) for number, (rank, text) in enumerate(written)]
    folds = lines_of(rows, POINTS).folds
    for rank in range(4):
        shown = [one.text for one in folds for each in one.each if each.where == f"gpus={rank}"]
        assert shown == [text for at, text in written if at == rank]
