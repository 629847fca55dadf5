"""What is alike is counted, and a flood of it costs few lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.core.tally import EACH, KINDS, Tally


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
        assert tally.tells_apart(kind)
        assert tally.note(kind) == 1
    assert tally.tells_apart(7)
    assert not tally.tells_apart(KINDS)
    assert dict(tally.counts()) == dict.fromkeys(range(KINDS), 1)


def test_what_was_told_at_the_end_is_forgotten() -> None:
    tally: Tally[str] = Tally()
    for _ in range(EACH + 1):
        tally.note("a")
    assert list(tally.unwritten()) == [("a", EACH + 1)]
    assert list(tally.counts()) == []
