"""The rungs of the stop button."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch_jupyter.cells.interrupt_policy import PATIENCE, InterruptLevel, InterruptPolicy


def test_presses_in_time_climb_and_stay_on_top() -> None:
    ladder = InterruptPolicy()
    rungs = [ladder.press(at * PATIENCE / 2, calls_open=True) for at in range(5)]
    assert rungs == [
        InterruptLevel.CANCEL,
        InterruptLevel.SIGNAL,
        InterruptLevel.OFFER,
        InterruptLevel.OFFER,
        InterruptLevel.OFFER,
    ]


def test_a_late_press_begins_anew() -> None:
    ladder = InterruptPolicy()
    ladder.press(0.0, calls_open=True)
    ladder.press(1.0, calls_open=True)
    assert not ladder.escalates(1.0 + PATIENCE + 0.1)
    assert ladder.press(1.0 + PATIENCE + 0.1, calls_open=True) is InterruptLevel.CANCEL


def test_so_does_one_that_finds_nothing_left() -> None:
    ladder = InterruptPolicy()
    ladder.press(0.0, calls_open=False)
    assert ladder.press(0.1, calls_open=False) is InterruptLevel.CANCEL
    assert ladder.press(0.2, calls_open=True) is InterruptLevel.SIGNAL


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans())))
def test_no_rung_is_skipped(presses: list[tuple[float, bool]]) -> None:
    ladder = InterruptPolicy()
    now = 0.0
    before = InterruptLevel.NONE
    for after, left in presses:
        now += after
        level = ladder.press(now, calls_open=left)
        assert level is InterruptLevel.CANCEL or level.value <= before.value + 1
        assert after <= PATIENCE or level is InterruptLevel.CANCEL
        before = level
