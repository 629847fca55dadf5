"""Columns, durations and sizes as people read them."""

from __future__ import annotations

import pytest

from monarch._src.cli.columns import columns, duration, memory


def test_columns_stand_under_each_other_and_numbers_end_at_one_place() -> None:
    rows = [["NAME", "PID", "X"], ["a", "7", "yes"], ["longer", "1234", ""]]
    assert columns(rows, right=(1,), indent="  ") == [
        "  NAME     PID  X",
        "  a          7  yes",
        "  longer  1234",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"),
     (86399, "23 h 59 min"), (86400, "1 d 0 h"), (200000, "2 d 7 h")],
)  # fmt: skip
def test_a_duration_is_told_in_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_memory_is_told_in_mebibytes() -> None:
    assert memory(45 << 20) == "45 MiB"
    assert memory(0) == "-"
