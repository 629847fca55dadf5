"""How long ranks stood at breakpoints: spans by rank, of several at once counted once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.actor.state.deadline_pauses import LONGEST, Pauses

RANKS = [(7, 0), (7, 1)]


def test_nothing_stands_still_where_nobody_paused() -> None:
    pauses = Pauses()
    assert not pauses
    assert pauses.within(RANKS, 0.0, 10.0) == (0.0, False)
    pauses.on_paused(7, 0, False, 1.0)
    assert not pauses


def test_a_pause_counts_from_when_the_wait_began_until_it_ends() -> None:
    pauses = Pauses()
    pauses.on_paused(7, 0, True, 2.0)
    pauses.on_paused(7, 0, True, 3.0)  # told twice
    assert pauses.within(RANKS, 1.0, 5.0) == (3.0, True)
    assert pauses.within(RANKS, 4.0, 5.0) == (1.0, True)
    assert pauses.within([(7, 1)], 1.0, 5.0) == (0.0, False)
    pauses.on_paused(7, 0, False, 6.0)
    assert pauses.within(RANKS, 4.0, 9.0) == (2.0, False)
    pauses.clear()
    assert not pauses


def test_pauses_of_two_ranks_at_once_count_once() -> None:
    pauses = Pauses()
    pauses.on_paused(7, 0, True, 1.0)
    pauses.on_paused(7, 1, True, 2.0)
    pauses.on_paused(7, 0, False, 3.0)
    pauses.on_paused(7, 1, False, 5.0)
    assert pauses.within(RANKS, 0.0, 9.0) == (4.0, False)


@given(st.lists(st.tuples(st.sampled_from(RANKS), st.booleans()), max_size=3 * LONGEST))
def test_what_stands_still_is_never_longer_than_the_wait(
    told: list[tuple[tuple[int, int], bool]],
) -> None:
    pauses = Pauses()
    for at, ((mesh, rank), paused) in enumerate(told):
        pauses.on_paused(mesh, rank, paused, float(at))
        pauses.validate()
    now = float(len(told))
    for since in (0.0, now / 2, now):
        total, _ = pauses.within(RANKS, since, now)
        assert 0.0 <= total <= now - since
