"""Whether another trunk is offered, and when: by the times at which those before have ended."""

from __future__ import annotations

import pytest

from monarch._src.core.trunk_tries import FIRST_S, LONGEST_S, TrunkTries

SOON_S = 60.0


def after(*ends: float) -> TrunkTries:
    tries = TrunkTries()
    for at in ends:
        tries.ended(at, SOON_S)
    return tries


@pytest.mark.parametrize("ends", [(), (10.0,), (10.0, 20.0), (10.0, 40.0, 70.0, 100.0)])
def test_few_ends_in_a_short_time_hold_nothing_up(ends: tuple[float, ...]) -> None:
    now = ends[-1] if ends else 0.0
    assert after(*ends).waits_until(now) is None


def test_after_three_in_a_minute_there_is_a_pause_and_then_a_try() -> None:
    tries = after(10.0, 20.0, 30.0)
    assert tries.count == 3
    assert tries.waits_until(30.0) == 30.0 + FIRST_S
    assert tries.waits_until(29.9 + FIRST_S) == 30.0 + FIRST_S
    assert tries.waits_until(30.0 + FIRST_S) is None


def test_each_try_that_ends_soon_is_followed_by_a_longer_pause_up_to_a_bound() -> None:
    tries, now = after(0.0, 0.0, 0.0), 0.0
    pauses: list[float] = []
    for _ in range(10):
        until = tries.waits_until(now)
        assert until is not None
        pauses.append(until - now)
        now = until
        assert tries.waits_until(now) is None
        tries.ended(now := now + SOON_S / 2, SOON_S)
    assert pauses[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses[-1] == LONGEST_S
    assert tries.count == 13


def test_one_that_lives_longer_makes_what_was_before_forgotten() -> None:
    tries = after(0.0, 0.0, 0.0)
    tries.ended(FIRST_S + 1, SOON_S)  # a second pause, of twice the time
    now = FIRST_S + 1 + 2 * FIRST_S + SOON_S  # the next one has lived for as long as counts
    tries.ended(now, SOON_S)
    assert tries.waits_until(now) is None
    assert tries.count == 1
    tries.ended(now + 1, SOON_S)
    assert tries.waits_until(now + 1) is None
    tries.ended(now + 2, SOON_S)
    assert tries.waits_until(now + 2) == now + 2 + FIRST_S
