"""The rungs of the stop button."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch_jupyter.cells.interrupt_policy import PATIENCE, InterruptLevel, InterruptPolicy


def test_presses_in_time_climb_and_stay_on_top() -> None:
    ladder = InterruptPolicy()
    rungs = [ladder.press(at * PATIENCE / 2, something_left=True) for at in range(5)]
    assert rungs == [
        InterruptLevel.CANCEL,
        InterruptLevel.SIGNAL,
        InterruptLevel.OFFER,
        InterruptLevel.OFFER,
        InterruptLevel.OFFER,
    ]


def test_a_late_press_begins_anew() -> None:
    ladder = InterruptPolicy()
    ladder.press(0.0, something_left=True)
    ladder.press(1.0, something_left=True)
    assert not ladder.is_climbing(1.0 + PATIENCE + 0.1)
    assert ladder.press(1.0 + PATIENCE + 0.1, something_left=True) is InterruptLevel.CANCEL


def test_so_does_one_that_finds_nothing_left() -> None:
    ladder = InterruptPolicy()
    ladder.press(0.0, something_left=False)
    assert ladder.press(0.1, something_left=False) is InterruptLevel.CANCEL
    assert ladder.press(0.2, something_left=True) is InterruptLevel.SIGNAL


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans())))
def test_no_rung_is_skipped(presses: list[tuple[float, bool]]) -> None:
    ladder = InterruptPolicy()
    now = 0.0
    before = InterruptLevel.NONE
    for after, left in presses:
        now += after
        rung = ladder.press(now, something_left=left)
        assert rung is InterruptLevel.CANCEL or rung.value <= before.value + 1
        assert after <= PATIENCE or rung is InterruptLevel.CANCEL
        before = rung
