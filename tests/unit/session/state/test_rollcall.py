"""Who asks whether all procs know the client is answered when they do, or when it is time."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.session.state.rollcall import PATIENCE_S, RollCall

ALL: Callable[[str], bool] = lambda _: True  # noqa: E731


def told(*procs: str, number: int = 1, at: float = 0.0) -> RollCall:
    roll = RollCall()
    roll.announced(procs, number, at)
    return roll


def test_who_asks_is_answered_when_the_last_proc_has_said_so() -> None:
    roll = told("a", "b")
    roll.requested("client", 7)
    roll.confirmed("b", 1)
    assert roll.due(0.1, ALL) == []
    roll.confirmed("a", 1)
    assert roll.due(0.1, ALL) == [("client", 7)]
    assert roll.due(0.1, ALL) == [], "once"


def test_who_asks_behind_the_last_answer_is_answered_at_once() -> None:
    roll = told("a")
    roll.confirmed("a", 1)
    roll.requested("client", 7)
    assert roll.due(0.1, ALL) == [("client", 7)]


def test_where_nobody_was_told_anything_nobody_waits() -> None:
    roll = RollCall()
    roll.requested("client", 7)
    assert roll.due(0.0, ALL) == [("client", 7)]


def test_a_proc_that_says_nothing_is_not_waited_for_longer_than_its_time() -> None:
    roll = told("a", at=5.0)
    assert roll.deadline is None, "nobody waits"
    roll.requested("client", 7)
    assert roll.deadline == 5.0 + PATIENCE_S
    assert roll.due(4.9 + PATIENCE_S, ALL) == []
    assert roll.due(5.0 + PATIENCE_S, ALL) == [("client", 7)]
    assert roll.deadline is None


def test_the_time_of_a_proc_begins_when_it_is_told_and_not_when_somebody_asks() -> None:
    roll = told("a", at=5.0)
    roll.requested("client", 7)
    roll.due(5.0 + PATIENCE_S, ALL)
    roll.requested("client", 8)
    assert roll.due(5.0 + PATIENCE_S, ALL) == [("client", 8)]


def test_a_proc_that_has_ended_is_not_waited_for() -> None:
    roll = told("a", "b")
    roll.requested("client", 7)
    assert roll.due(0.1, lambda proc: proc != "a") == []
    roll.confirmed("b", 1)
    assert roll.due(0.1, ALL) == [("client", 7)]


def test_that_a_proc_knows_an_earlier_client_is_no_answer() -> None:
    roll = told("a", number=1)
    roll.announced(["a"], 2, 0.0)
    roll.requested("client", 7)
    roll.confirmed("a", 1)
    assert roll.due(0.1, ALL) == []
    roll.confirmed("a", 2)
    assert roll.due(0.1, ALL) == [("client", 7)]


def test_a_client_that_is_none_any_more_is_answered_nothing() -> None:
    roll = told("a")
    roll.requested("client", 7)
    roll.announced([], 1, 0.5)  # there is none
    assert roll.due(9.0, ALL) == []


@given(
    st.sets(st.sampled_from("abcdef")),
    st.lists(st.tuples(st.sampled_from(["answers", "ends"]), st.sampled_from("abcdef"))),
)
def test_who_asks_is_answered_exactly_when_nobody_owes_an_answer(
    procs: set[str], events: list[tuple[str, str]]
) -> None:
    roll = told(*procs)
    roll.requested("client", 7)
    owing = set(procs)
    ended: set[str] = set()
    for what, proc in [("ends", "nobody"), *events]:
        owing.discard(proc)
        if what == "answers":
            roll.confirmed(proc, 1)
        else:
            ended.add(proc)
        due = roll.due(0.1, lambda one: one not in ended)
        assert due == ([] if owing else [("client", 7)])
        if due:
            return


def test_of_many_procs_none_is_asked_about_again_and_again() -> None:
    procs = [str(number) for number in range(1000)]
    roll = told(*procs)
    roll.requested("client", 7)
    looks: list[str] = []

    def counts(proc: str) -> bool:
        looks.append(proc)
        return True

    for proc in reversed(procs):
        assert roll.due(0.1, counts) == []
        roll.confirmed(proc, 1)
    assert roll.due(0.1, counts) == [("client", 7)]
    assert len(looks) == 1000
