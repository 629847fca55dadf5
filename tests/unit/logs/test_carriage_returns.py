"""What a line with carriage returns shows in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.logs.carriage_returns import shown


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("plain", "plain"),
        ("", ""),
        ("with a windows end\r", "with a windows end"),
        ("\r 10%\r 20%\r100%", "100%"),
        ("\r 10%\r", " 10%"),
        ("12345\rab", "ab345"),
        ("12345\r\x1b[Kab", "ab"),
        ("12345\rab   ", "ab"),
        ("12\b\b3 ", "12\b\b3 "),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("50%\r\x1b[32m100%\x1b[0m", "\x1b[32m100%\x1b[0m"),
        ("\x1b[A\x1b[2Kup a line", "up a line"),
        ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"),
    ],
)
def test_a_line_shows_its_last_state(written: str, seen: str) -> None:
    assert shown(written) == seen


@given(st.lists(st.text(alphabet="abc ", max_size=8), min_size=1))
def test_it_is_what_a_terminal_has_in_that_row(states: list[str]) -> None:
    row: list[str] = []
    for state in states:
        row[: len(state)] = state
    seen = "".join(row)
    assert shown("\r".join(states)) == (seen.rstrip(" ") if len(states) > 1 else seen)
