"""The choice of a transport: the fastest that works, and a reason for each that does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.rdma.transports.base import Choice, Why

ORDER = ("shm", "cma", "tcp")


def test_the_fastest_that_suits_is_tried_first() -> None:
    choice = Choice(ORDER)
    assert choice.best(ORDER) == "shm"
    assert choice.best(("cma", "tcp")) == "cma"
    assert choice.best(()) is None


def test_what_failed_is_not_used_and_says_why() -> None:
    choice = Choice(ORDER)
    choice.failed("cma", Why("not permitted", "be root"))
    assert choice.best(("cma", "tcp")) == "tcp"
    assert choice.whys() == {"cma": "not permitted (be root)"}


def test_what_worked_may_fail_later() -> None:
    choice = Choice(ORDER)
    choice.worked("shm")
    assert choice.best(ORDER) == "shm"
    choice.failed("shm", Why("torn down"))
    assert choice.best(ORDER) == "cma"


def test_only_the_last_gets_another_chance() -> None:
    choice = Choice(ORDER)
    for name in ORDER:
        choice.failed(name, Why("broken"))
    assert choice.best(ORDER) is None
    choice.give_another_chance()
    assert choice.best(ORDER) == "tcp"
    choice.worked("tcp")
    assert set(choice.whys()) == {"shm", "cma"}


def test_two_transfers_may_tell_of_the_same_failure() -> None:
    choice = Choice(ORDER)
    choice.failed("cma", Why("first"))
    choice.failed("cma", Why("second"))
    choice.worked("cma")
    assert choice.whys() == {"cma": "first"}


EVENTS = st.lists(
    st.tuples(st.sampled_from(["worked", "failed", "again"]), st.sampled_from(ORDER)), max_size=40
)


@given(EVENTS)
def test_whatever_happens_what_failed_is_not_chosen(events: list[tuple[str, str]]) -> None:
    choice = Choice(ORDER)
    for what, name in events:
        if what == "worked":
            choice.worked(name)
        elif what == "failed":
            choice.failed(name, Why("because"))
        else:
            choice.give_another_chance()
        choice.validate()
        best = choice.best(ORDER)
        usable = [n for n in ORDER if choice.state(n) != "failed"]
        assert best == (usable[0] if usable else None)
        assert set(choice.whys()) == set(ORDER) - set(usable)
