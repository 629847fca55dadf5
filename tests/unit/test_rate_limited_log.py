"""What is alike is counted, and a flood of it costs few lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.rate_limited_log import EACH, KINDS, OF_ONE, SharedTally, Tally


@given(st.integers(1, 5000))
def test_of_a_flood_the_first_are_written_and_then_fewer_and_fewer(count: int) -> None:
    tally: Tally[str] = Tally()
    written = [number for _ in range(count) if (number := tally.note("flood"))]
    assert written[:EACH] == list(range(1, min(count, EACH) + 1))
    assert len(written) <= EACH + count.bit_length()
    last = dict(tally.unwritten()).get("flood", written[-1])
    assert last == count, "the last number is known in the end"


def test_kinds_are_counted_apart_up_to_a_bound() -> None:
    tally: Tally[int] = Tally()
    for kind in range(KINDS):
        assert tally.has_room_for(kind)
        assert tally.note(kind) == 1
    assert tally.has_room_for(7)
    assert not tally.has_room_for(KINDS)
    assert dict(tally.counts()) == dict.fromkeys(range(KINDS), 1)


def test_what_was_told_at_the_end_is_forgotten() -> None:
    tally: Tally[str] = Tally()
    for _ in range(EACH + 1):
        tally.note("a")
    assert list(tally.unwritten()) == [("a", EACH + 1)]
    assert list(tally.counts()) == []


def test_one_source_leaves_others_room() -> None:
    tally: SharedTally[str] = SharedTally()
    for number in range(OF_ONE):
        assert tally.note(f"a {number}", "of a", "of all") == (f"a {number}", 1)
    assert tally.note("a more", "of a", "of all") == ("of a", 1)
    assert tally.note("a 7", "of a", "of all") == ("a 7", 2)
    assert tally.note("b 1", "of b", "of all") == ("b 1", 1)


def test_many_sources_have_a_bound_together() -> None:
    tally: SharedTally[int | str] = SharedTally(kinds=10, of_one=2)
    noted = [tally.note(number, f"of {number}", "of all") for number in range(12)]
    assert noted == [*((number, 1) for number in range(10)), ("of all", 1), ("of all", 2)]


def test_what_was_told_of_sources_is_forgotten_too() -> None:
    tally: SharedTally[str] = SharedTally(kinds=10, of_one=1)
    for _ in range(EACH + 1):
        tally.note("a", "of a", "of all")
    assert list(tally.unwritten()) == [("a", EACH + 1)]
    assert tally.note("another", "of a", "of all") == ("another", 1)
