"""Notices of ends wait for the last words of the dead, and for one more look."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.host.state.death_notices import Notices


class Wire:
    """Pipes of nodes that have died: how many looks until each is known to be at its end."""

    def __init__(self, looks: dict[str, int]) -> None:
        self.looks = dict(looks)

    def said_all(self, node: str, _came: float) -> bool:
        self.looks[node] -= 1
        return self.looks[node] < 0


def told_in_turns(notices: Notices[str], wire: Wire) -> Iterator[list[str]]:
    """What is told, look by look."""
    while notices:
        yield list(notices.due())
        notices.poll(wire.said_all)


def test_a_notice_waits_for_the_end_of_its_pipe_and_one_more_look() -> None:
    notices: Notices[str] = Notices()
    notices.add("ended", "node", 0.0)
    wire = Wire({"node": 2})
    assert list(told_in_turns(notices, wire)) == [[], [], [], ["ended"]]


def test_another_look_is_asked_for_when_a_pipe_is_found_at_its_end() -> None:
    notices: Notices[str] = Notices()
    notices.add("ended", "node", 0.0)
    assert not notices.poll(lambda node, came: False)
    assert notices.poll(lambda node, came: True)
    assert not notices.poll(lambda node, came: pytest.fail("it has been found already"))
    assert list(notices.due()) == ["ended"]
    assert not notices


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_notices_are_told_in_order_each_once(looks: list[int]) -> None:
    notices: Notices[str] = Notices()
    for i in range(len(looks)):
        notices.add(f"proc {i}", f"node {i}", 0.0)
    notices.add("mesh", "", 0.0)
    wire = Wire({f"node {i}": n for i, n in enumerate(looks)})
    told = [notice for turn in told_in_turns(notices, wire) for notice in turn]
    assert told == [*(f"proc {i}" for i in range(len(looks))), "mesh"]


def test_when_nothing_more_can_come_all_are_told() -> None:
    notices: Notices[str] = Notices()
    notices.add("one", "a", 0.0)
    notices.add("two", "b", 0.0)
    assert list(notices.all()) == ["one", "two"]
    assert not notices
