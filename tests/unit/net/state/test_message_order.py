"""Two routes, one order: what was sent first is taken first, however the routes race."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._src.net.state.message_order import REMEMBERED, Incoming, Outgoing
from monarch._src.shape import Extent, Region

GRID = Region.of_extent(Extent(("hosts", "gpus"), (3, 4)))
ROW, COLUMN = GRID.slice(hosts=1), GRID.slice(gpus=2)
REGIONS = [
    GRID,
    *(GRID.slice(hosts=i) for i in range(3)),
    *(GRID.slice(gpus=i) for i in range(4)),
    GRID.slice(gpus=slice(0, 4, 2)),
    GRID.slice(hosts=slice(1, 3), gpus=slice(1, 3)),
]


def test_a_program_that_never_casts_waits_for_nothing() -> None:
    out = Outgoing()
    assert [out.direct(rank) for rank in (0, 0, 5)] == [0, 0, 0]


def test_a_direct_message_follows_the_last_cast_that_its_receiver_was_part_of() -> None:
    out = Outgoing()
    assert out.cast(GRID)[0] == 1
    assert out.cast(ROW)[0] == 2
    assert out.direct(ROW.global_rank(0)) == 2
    assert out.direct(0) == 1


def test_a_cast_names_only_those_sent_something_direct_since_their_last() -> None:
    out = Outgoing()
    for rank in (0, 6, 6, 7):
        out.direct(rank)
    assert sorted(out.cast(COLUMN)[1]) == [(6, 2)]
    assert sorted(out.cast(GRID)[1]) == [(0, 1), (7, 1)]
    assert out.cast(GRID)[1] == []
    out.direct(7)
    assert out.cast(GRID)[1] == [(7, 2)]


def test_what_goes_to_all_is_the_same_for_each_until_something_is_cast() -> None:
    out = Outgoing()
    out.direct(2)
    assert out.direct_to_all(12)
    assert out.direct_to_all(12)
    out.renewed(3)
    number, fences = out.cast(GRID.slice(hosts=0))
    assert (number, sorted(fences)) == (1, [(0, 2), (1, 2), (2, 3)]), "the new 3 has none"
    assert not out.direct_to_all(12), "0 has to take the cast first, and 4 has not"
    assert [out.direct(rank) for rank in (0, 4)] == [1, 0]
    number, fences = out.cast(GRID.slice(gpus=0))
    assert (number, sorted(fences)) == (2, [(0, 3), (4, 3), (8, 2)])


def test_the_last_cast_is_known_also_after_many_other_regions() -> None:
    out = Outgoing()
    out.cast(COLUMN)
    rows = [GRID.slice(hosts=0, gpus=slice(0, stop)) for stop in (1, 2)]
    others = [GRID.slice(hosts=slice(1, 2), gpus=slice(a, a + 2)) for a in range(3)]
    others += [GRID.slice(hosts=slice(1, 3), gpus=slice(a, b)) for a in range(4) for b in (a + 1,)]
    for region in [*rows, *others]:
        out.cast(region)
    assert len(others) + len(rows) > REMEMBERED
    assert out.direct(2) == 1
    assert out.direct(0) == 3


def test_a_direct_message_that_overtakes_a_cast_is_held_until_that_has_come() -> None:
    came: Incoming[str] = Incoming()
    assert not came.direct(1, "second")
    assert came.holds
    assert not came.direct(1, "third")
    assert came.cast(1, 0, "first")
    assert list(came.released()) == ["second", "third"]
    assert not came.holds


def test_a_cast_that_overtakes_direct_messages_is_held_until_they_have_come() -> None:
    came: Incoming[str] = Incoming()
    assert not came.cast(4, 2, "third")
    assert came.direct(0, "first")
    assert list(came.released()) == []
    assert came.direct(0, "second")
    assert list(came.released()) == ["third"]


@settings(max_examples=300)
@given(
    sent=st.lists(
        st.tuples(
            st.sampled_from(["direct", "to all", "cast"]),
            st.sampled_from(REGIONS),
            st.integers(0, 11),
        )
    ),
    race=st.randoms(use_true_random=False),
)
def test_every_receiver_takes_what_it_was_sent_in_the_order_sent(
    sent: list[tuple[str, Region, int]], race: object
) -> None:
    out = Outgoing()
    expected: dict[int, list[int]] = {rank: [] for rank in range(12)}
    direct: dict[int, deque[tuple[int, int]]] = {rank: deque() for rank in range(12)}
    casts: dict[int, deque[tuple[int, int, int]]] = {rank: deque() for rank in range(12)}
    for item, (kind, region, rank) in enumerate(sent):
        if kind == "to all":
            alike = out.direct_to_all(12)
            for receiver in range(12):
                direct[receiver].append((0 if alike else out.direct(receiver), item))
                expected[receiver].append(item)
        elif kind == "cast":
            number, fences = out.cast(region)
            for receiver in region.ranks():
                casts[receiver].append((number, dict(fences).get(receiver, 0), item))
                expected[receiver].append(item)
        else:
            direct[rank].append((out.direct(rank), item))
            expected[rank].append(item)
    for rank in range(12):
        came: Incoming[int] = Incoming()
        taken: list[int] = []
        while direct[rank] or casts[rank]:
            lanes = [lane for lane in (direct[rank], casts[rank]) if lane]
            lane = race.choice(lanes)  # type: ignore[attr-defined]
            if lane is direct[rank]:
                after, item = direct[rank].popleft()
                now = came.direct(after, item)
            else:
                number, fence, item = casts[rank].popleft()
                now = came.cast(number, fence, item)
            if now:
                taken.append(item)
            if came.holds:
                taken += came.released()
        assert taken == expected[rank]
        assert not came.holds


def test_a_process_that_takes_the_place_of_another_waits_for_nothing_that_came_before_it() -> None:
    out: Outgoing = Outgoing()
    whole, other = Region.of_extent(Extent(("gpus",), (4,))), 3
    out.direct(1)
    assert out.cast(whole) == (1, [(1, 1)])
    out.direct(1)
    out.renewed(1)
    new: Incoming[str] = Incoming()
    assert new.direct(out.direct(1), "first"), "it was part of no cast"
    number, fences = out.cast(whole)
    assert (number, fences) == (2, [(1, 1)])
    assert new.cast(number, dict(fences)[1], "second")
    assert new.direct(out.direct(1), "third")
    assert out.direct(1) == 2
    assert out.direct(other) == 2
    # Before the first cast there is nothing to forget, and a second change is like the first.
    fresh = Outgoing()
    fresh.direct(1)
    fresh.renewed(1)
    assert fresh.cast(whole) == (1, [])
    fresh.renewed(1)
    assert fresh.direct(1) == 0
    assert fresh.direct(other) == 1
