"""The ranks that make no step: which are killed, and when."""

from __future__ import annotations

import pytest

from monarch._src.spmd.elastic.state.plan import Member
from monarch._src.spmd.elastic.state.step_watch import GRACE_S, End, Kill, StepWatch

A, B, C = Member(1, 0), Member(1, 1), Member(2, 0)
LIMIT_S = 10.0


@pytest.fixture
def watch() -> StepWatch:
    """A watch over three ranks, from time 100 on."""
    found = StepWatch(LIMIT_S)
    found.begin([A, B, C], 100.0)
    return found


def test_ranks_that_make_steps_are_left_alone(watch: StepWatch) -> None:
    for steps in range(100):
        now = 100.0 + steps
        for member in (A, B, C):
            watch.on_steps(member, steps, now)
        assert watch.check([A, B, C], now) is None


def test_collectives_are_ended_first_and_those_that_still_run_are_killed(watch: StepWatch) -> None:
    assert watch.check([A, B, C], 109.9) is None
    assert watch.check([A, B, C], 110.0) == End((A, B, C))
    assert watch.check([B], 110.0 + GRACE_S - 0.1) is None
    assert watch.check([B], 110.0 + GRACE_S) == Kill((B,))
    assert watch.check([B], 200.0) is None  # its death is on the way


def test_a_rank_that_goes_on_after_the_end_of_its_collectives_has_its_own_time(
    watch: StepWatch,
) -> None:
    watch.on_steps(C, 1, 105.0)
    assert watch.check([A, B, C], 110.0) == End((A, B))
    assert watch.check([B, C], 115.0 - 0.1) is None
    assert watch.check([B, C], 115.0) == Kill((B, C))


def test_a_report_without_a_new_step_is_no_progress(watch: StepWatch) -> None:
    watch.on_steps(A, 3, 101.0)
    watch.on_steps(A, 3, 109.0)
    watch.on_steps(A, 2, 109.0)  # an older one that comes late
    assert watch.idle_s(A, 111.0) == 10.0


def test_a_rank_whose_progress_is_unknown_is_not_killed(watch: StepWatch) -> None:
    watch.on_unknown(A, 109.0)
    watch.on_unknown(Member(9, 9), 109.0)
    assert watch.check([A], 110.0) is None
    assert watch.check([Member(9, 9)], 200.0) is None


def test_the_next_call_begins_anew(watch: StepWatch) -> None:
    assert watch.check([A], 110.0) == End((A,))
    watch.end()
    assert watch.check([A], 130.0) is None
    watch.begin([A], 140.0)
    watch.on_steps(A, 0, 141.0)  # a process that is new counts from the beginning
    assert watch.check([A], 150.0) is None
    assert watch.check([A], 151.0) == End((A,))
