"""The offset of another clock, from readings of it: what is true always lies within the bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.telemetry.perfetto.state.clock_offset import ClockOffset, OffsetBounds

DELAY_NS = st.integers(0, 50_000_000)
READINGS = st.lists(st.tuples(DELAY_NS, DELAY_NS, DELAY_NS), min_size=1, max_size=20)


def bounds_of(offset_ns: int, readings: list[tuple[int, int, int]]) -> OffsetBounds:
    """After readings with these pauses, and these delays on the way there and back."""
    bounds, now_ns = OffsetBounds(), 1_000_000_000_000
    for pause_ns, there_ns, back_ns in readings:
        asked_ns = now_ns + pause_ns
        read_us = (asked_ns + there_ns + offset_ns) // 1000
        now_ns = asked_ns + there_ns + back_ns
        bounds.add(asked_ns, read_us, now_ns)
    return bounds


@given(st.integers(-(10**11), 10**11), READINGS)
def test_the_offset_lies_within_the_bounds(
    offset_ns: int, readings: list[tuple[int, int, int]]
) -> None:
    found = bounds_of(offset_ns, readings).offset()
    assert found is not None
    assert abs(found.seconds - offset_ns / 1e9) <= found.uncertainty_s + 1e-9
    fastest_ns = min(there_ns + back_ns for _, there_ns, back_ns in readings)
    assert found.uncertainty_s <= (fastest_ns + 999) / 2e9 + 1e-9


@given(READINGS)
def test_one_clock_is_not_corrected(readings: list[tuple[int, int, int]]) -> None:
    found = bounds_of(0, readings).offset()
    assert found is not None
    assert found.correction_ns == 0


def test_without_a_reading_there_is_no_offset() -> None:
    assert OffsetBounds().offset() is None


def test_readings_before_a_clock_was_set_do_not_count() -> None:
    bounds = OffsetBounds()
    bounds.add(0, 1_000_000, 2000)
    bounds.add(10_000, 9_000_000, 12_000)
    found = bounds.offset()
    assert found is not None
    assert found.correction_ns == pytest.approx(8_999_989_500, abs=2000)


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (ClockOffset(0.0032, 0.0001), "3.200 ms ahead, ± 0.100 ms"),
        (ClockOffset(-1.5, 0.0005), "1500.000 ms behind, ± 0.500 ms"),
    ],
)
def test_an_offset_says_which_clock_is_ahead(offset: ClockOffset, text: str) -> None:
    assert str(offset) == text
