"""How times, sizes and counts are said."""

from __future__ import annotations

import pytest

from monarch_jupyter.rendering.units import byte_size, columns, count, duration, short_time


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.3, "12 s"), (185, "3 min 5 s"), (7805, "2 h 10 min")],
)
def test_times_are_said_shortly(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 µs"), (0.00000004, "0.04 µs"), (0.0000037, "3.7 µs"), (0.000347, "347 µs"),
        (0.0009994, "999 µs"), (0.0009996, "1.0 ms"), (0.0123, "12 ms"), (1.5, "1.5 s"),
        (9.94, "9.9 s"), (12.3, "12 s"), (185, "3 min 5 s"),
    ],
)  # fmt: skip
def test_short_times_keep_two_digits(seconds: float, said: str) -> None:
    assert short_time(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (20_000, "20 KiB"), (2**20 - 1, "1.0 MiB"),
        (20 * 2**20, "20 MiB"), (3 * 2**30, "3.0 GiB"), (5 * 2**50, "5120 TiB"),
    ],
)  # fmt: skip
def test_sizes_are_said_in_the_nearest_unit(number: int, said: str) -> None:
    assert byte_size(number) == said


def test_counts_agree_with_their_nouns() -> None:
    assert (count(1, "rank"), count(0, "rank")) == ("1 rank", "0 ranks")


def test_columns_are_as_wide_as_their_widest_word() -> None:
    assert columns([["a", "b"], ["long", "c"]]) == ["a     b", "long  c"]
