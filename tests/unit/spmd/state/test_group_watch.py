"""Which exceptions of peers end the collectives of a rank."""

from __future__ import annotations

from monarch._src.spmd.state.group_watch import (
    MAKING,
    ON_ITS_WAY_S,
    Absence,
    CallKey,
    CallState,
    Group,
    GroupWatch,
)

STEP = CallKey("client", 7, 1, "step")
ALL = frozenset(range(4))


def absence(rank: int = 3, call: CallKey = STEP, **begun: int) -> Absence:
    return Absence(rank, call, begun, f"rank {rank} raised ValueError")


def group(begun: int, name: str = "world", ranks: frozenset[int] = ALL) -> Group:
    return Group(name, ranks, begun)


def runs_all(_call: CallKey) -> CallState:
    return CallState.RUNNING


def test_a_collective_that_a_rank_did_not_come_to_waits_in_vain() -> None:
    watch = GroupWatch(0)
    watch.on_absence(absence(world=4), 0.0)
    assert watch.must_check
    assert watch.check([group(5)], runs_all, 0.0) == (
        "rank 3 raised ValueError, and did not come to collective 5"
    )
    assert watch.ended == "rank 3 raised ValueError, and did not come to collective 5"
    assert not watch.must_check


def test_a_group_that_a_rank_did_not_come_to_make_is_made_in_vain() -> None:
    watch = GroupWatch(0)
    watch.on_absence(Absence(3, STEP, {MAKING: 1}, "rank 3 raised ValueError"), 0.0)
    assert watch.check([group(1, MAKING)], runs_all, 0.0) is None  # made before it has raised
    assert watch.check([group(2, MAKING, frozenset({0, 1}))], runs_all, 0.0) is None
    assert watch.check([group(2, MAKING)], runs_all, 0.0) == (
        "rank 3 raised ValueError, and did not come to make process group 2"
    )


def test_a_rank_that_raised_after_all_of_them_harms_no_group() -> None:
    watch = GroupWatch(0)
    watch.on_absence(absence(world=5), 0.0)
    assert watch.check([group(5)], runs_all, 0.0) is None
    assert watch.must_check  # this rank may begin another one, within the same call


def test_a_collective_that_begins_after_the_news_waits_in_vain_too() -> None:
    watch = GroupWatch(0)
    watch.on_absence(absence(world=5), 0.0)
    assert watch.check([group(5)], runs_all, 0.0) is None
    assert watch.check([group(6)], runs_all, 0.0) is not None


def test_a_rank_that_left_another_call_may_come_with_its_next_one() -> None:
    watch = GroupWatch(0)
    watch.on_absence(absence(world=4), 0.0)
    assert watch.check([group(5)], lambda _: CallState.ABSENT, ON_ITS_WAY_S) is None
    assert not watch.must_check
    assert watch.ended is None


def test_groups_without_the_rank_go_on() -> None:
    watch = GroupWatch(0)
    watch.on_absence(absence(world=4, half=0), 0.0)
    assert watch.check([group(4), group(9, "half", frozenset({0, 1}))], runs_all, 0.0) is None
    assert watch.check([group(4), group(9, "other", frozenset({0, 3}))], runs_all, 0.0) is not None


def test_the_exception_of_the_rank_itself_is_no_absence() -> None:
    watch = GroupWatch(3)
    watch.on_absence(absence(world=0), 0.0)
    assert not watch.must_check


def test_the_first_reason_stays() -> None:
    watch = GroupWatch(0)
    watch.on_absence(absence(world=0), 0.0)
    assert watch.on_peer_gone("rank 2 died")
    assert not watch.on_peer_gone("rank 1 died")
    assert watch.check([group(5)], runs_all, 0.0) is None
    watch.on_absence(absence(world=0), 0.0)
    assert watch.ended == "rank 2 died"
    assert not watch.must_check


def test_a_call_that_has_not_begun_is_waited_for() -> None:
    watch = GroupWatch(0)
    watch.on_absence(absence(world=4), 0.0)
    assert watch.check([group(5)], lambda _: CallState.ABSENT, 0.0) is None  # it is on its way
    assert watch.check([group(5)], lambda _: CallState.QUEUED, 2 * ON_ITS_WAY_S) is None
    assert watch.must_check
    assert watch.check([group(5)], runs_all, 2 * ON_ITS_WAY_S) is not None


def test_the_next_exception_of_a_rank_does_not_hide_the_one_before() -> None:
    watch = GroupWatch(0)
    second = CallKey("client", 8, 1, "step")
    watch.on_absence(absence(world=4), 0.0)
    watch.on_absence(absence(3, second, world=4), 0.0)
    states = {STEP: CallState.RUNNING, second: CallState.QUEUED}
    assert watch.check([group(5)], lambda call: states[call], 0.0) is not None
