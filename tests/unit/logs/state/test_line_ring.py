"""The last lines of a host are kept, within both bounds."""

from __future__ import annotations

from collections.abc import Container

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.logs.state.line_ring import LineRing

CLIENT = "client"


def texts(ring: LineRing, client: str = CLIENT, meshes: Container[int] = ()) -> list[str]:
    return [text for one in ring.of_client(client, meshes) for _, text in one.lines]


def test_lines_are_kept_in_the_order_in_which_they_came() -> None:
    ring = LineRing()
    ring.add(5, 1, "workers", 0, [(1, "a"), (2, "b")], CLIENT)
    ring.add(6, 1, "workers", 1, [(1, "c")], CLIENT)
    assert [tuple(one) for one in ring.of_client(CLIENT, ())] == [
        (1, 5, 1, "workers", 0, CLIENT, [(1, "a"), (2, "b")]),
        (3, 6, 1, "workers", 1, CLIENT, [(1, "c")]),
    ]


def test_lines_that_have_not_ended_are_left_out() -> None:
    ring = LineRing()
    ring.add(5, 1, "workers", 0, [(3, "10 %"), (6, "begun"), (1, "whole")], CLIENT)
    assert texts(ring) == ["whole"]


def test_the_oldest_lines_are_dropped_and_counted_when_there_are_too_many() -> None:
    ring = LineRing(most_lines=2)
    ring.add(5, 1, "workers", 0, [(1, text) for text in "abcde"], CLIENT)
    assert (texts(ring), ring.dropped) == (["d", "e"], 3)
    assert [one.first for one in ring.of_client(CLIENT, ())] == [4]


def test_the_oldest_lines_are_dropped_when_there_are_too_many_characters() -> None:
    ring = LineRing(most_chars=5)
    ring.add(5, 1, "workers", 0, [(1, "abc")], CLIENT)
    ring.add(5, 1, "workers", 0, [(1, "de"), (1, "f")], CLIENT)
    assert (texts(ring), ring.dropped) == (["de", "f"], 1)


def test_a_line_above_the_bound_leaves_nothing() -> None:
    ring = LineRing(most_chars=5)
    ring.add(5, 1, "workers", 0, [(1, "abcdefg")], CLIENT)
    assert (texts(ring), ring.dropped) == ([], 1)


def test_a_client_reads_its_own_lines_and_those_of_meshes_that_it_has() -> None:
    ring = LineRing()
    ring.add(5, 1, "ended", 0, [(1, "a")], "first")
    ring.add(5, 2, "kept", 0, [(1, "b")], "first")
    ring.add(6, 3, "new", 0, [(1, "c")], "second")
    assert texts(ring, "second", {2, 3}) == ["b", "c"]
    assert texts(ring, "first", set()) == ["a", "b"]


ADDED = st.lists(st.tuples(st.integers(1, 6), st.text(max_size=4)))


@given(st.lists(ADDED, max_size=30), st.integers(1, 6), st.integers(1, 12))
def test_the_invariants_hold_after_every_addition(
    additions: list[list[tuple[int, str]]], most_lines: int, most_chars: int
) -> None:
    ring = LineRing(most_lines, most_chars)
    for lines in additions:
        ring.add(1, 1, "m", 0, lines, CLIENT)
        ring.validate()
