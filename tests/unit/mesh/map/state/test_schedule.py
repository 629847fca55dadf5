"""The schedule of a map: every item is run, ranks stay busy, a loss gives items to other ranks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.mesh.map.state.schedule import (
    MOST_IN_FLIGHT,
    MOST_LOSSES,
    Chunk,
    MapSchedule,
)


def sizes(chunks: list[Chunk]) -> list[int]:
    return [len(chunk.items) for chunk in chunks]


def test_each_rank_begins_with_one_item_and_gets_no_second_before_the_time_of_items_is_known() -> (
    None
):
    schedule = MapSchedule(100, range(4))
    assert [(c.rank, list(c.items)) for c in schedule.hand_out()] == [
        (0, [0]), (1, [1]), (2, [2]), (3, [3]),
    ]  # fmt: skip
    assert schedule.hand_out() == []


def test_short_items_are_handed_out_in_larger_chunks_two_to_a_rank() -> None:
    schedule = MapSchedule(10_000, range(2))
    first, _ = schedule.hand_out()
    schedule.on_done(first, 0.005)
    assert sizes(schedule.hand_out()) == [10, 10, 10]
    assert schedule.hand_out() == []


def test_long_items_are_handed_out_one_by_one_and_none_waits_behind_another() -> None:
    schedule = MapSchedule(100, range(2))
    first, second = schedule.hand_out()
    schedule.on_done(first, 5.0)
    (third,) = schedule.hand_out()
    assert (third.rank, list(third.items)) == (0, [2])
    schedule.on_done(second, 5.0)
    assert sizes(schedule.hand_out()) == [1]


def test_the_last_items_wait_behind_no_other() -> None:
    schedule = MapSchedule(5, range(2), chunk_size=1)
    first, _ = schedule.hand_out()
    schedule.on_done(first, 0.001)
    handed = schedule.hand_out()
    assert [(chunk.rank, list(chunk.items)) for chunk in handed] == [(0, [2])]


def test_chunks_become_smaller_towards_the_end() -> None:
    schedule = MapSchedule(1000, range(4))
    queue = schedule.hand_out()
    seen: list[int] = []
    while queue:
        chunk = queue.pop(0)
        schedule.on_done(chunk, 0.0001 * len(chunk.items))
        handed = schedule.hand_out()
        seen += sizes(handed)
        queue += handed
    assert schedule.is_complete
    assert max(seen) > 50
    assert seen[-4:] == [1, 1, 1, 1]


def test_a_given_size_is_kept() -> None:
    schedule = MapSchedule(10, range(2), chunk_size=4)
    assert sizes(schedule.hand_out()) == [4, 4]


def test_what_a_rank_gives_back_goes_to_all_ranks_before_other_items() -> None:
    schedule = MapSchedule(1000, range(3))
    for chunk in schedule.hand_out():
        schedule.on_done(chunk, 0.005)
    chunk = schedule.hand_out()[0]
    assert list(chunk.items) == list(range(3, 13))
    schedule.on_done(chunk, 0.5, begun=2)
    assert schedule.done == 5
    assert [list(items) for items in schedule.returned] == [[5, 8, 11], [6, 9, 12], [7, 10]]
    schedule.validate()
    (again,) = schedule.hand_out()
    assert (again.rank, list(again.items)) == (0, [5, 8, 11])


def test_a_chunk_that_waits_behind_another_is_withdrawn_for_an_idle_rank() -> None:
    schedule = MapSchedule(8, range(2), chunk_size=1)
    first, second = schedule.hand_out()
    schedule.on_done(first, 0.001)
    *_, queued = schedule.hand_out()
    assert (queued.rank, list(queued.items)) == (second.rank, [4])
    assert schedule.withdraw() == []  # there are others to hand out
    while schedule.in_flight[0]:
        schedule.on_done(schedule.in_flight[0][0], 0.001)
        schedule.hand_out()
    assert schedule.withdraw() == [queued]
    assert schedule.withdraw() == []
    schedule.validate()
    schedule.on_withdrawn(queued)
    schedule.validate()
    (again,) = schedule.hand_out()
    assert (again.rank, list(again.items)) == (0, [4])
    schedule.on_done(again, 0.001)
    schedule.on_done(second, 9.0)
    assert schedule.is_complete


def test_a_withdrawn_chunk_is_shared_by_the_ranks_that_are_idle() -> None:
    schedule = MapSchedule(100, range(3))
    for chunk in schedule.hand_out():
        schedule.on_done(chunk, 0.005)
    schedule.hand_out()
    _, queued = schedule.in_flight[0]
    while schedule.in_flight[1] or schedule.in_flight[2]:
        for rank in (1, 2):
            for chunk in list(schedule.in_flight[rank]):
                schedule.on_done(chunk, 0.005)
        schedule.hand_out()
    assert schedule.withdraw() == [queued]
    schedule.on_withdrawn(queued)
    begin, *_, last = queued.items
    assert [list(chunk.items) for chunk in schedule.hand_out()] == [
        list(range(begin, last + 1, 2)), list(range(begin + 1, last + 1, 2)),
    ]  # fmt: skip
    schedule.validate()


def test_what_a_lost_rank_had_comes_before_other_items_and_what_it_ran_comes_apart() -> None:
    schedule = MapSchedule(1000, range(2), chunk_size=3)
    first, second = schedule.hand_out()
    schedule.on_done(second, 0.001)
    waiting = [chunk for chunk in schedule.hand_out() if chunk.rank == 0]
    assert [list(chunk.items) for chunk in waiting] == [[9, 10, 11]]
    loss = schedule.on_rank_lost(0)
    assert list(loss.again) == [0, 1, 2, 9, 10, 11]
    assert loss.abandoned == []
    assert list(first.items) == [0, 1, 2]
    schedule.validate()
    handed: list[list[int]] = []
    while len(handed) < 4:
        schedule.on_done(schedule.in_flight[1][0], 0.001)
        handed += [list(chunk.items) for chunk in schedule.hand_out()]
    assert handed[:4] == [[0], [1], [2], [9, 10, 11]]


def test_the_items_of_a_chunk_that_cannot_be_read_come_apart_before_others() -> None:
    schedule = MapSchedule(100, range(2), chunk_size=3)
    first, second = schedule.hand_out()
    schedule.on_split(first)
    schedule.validate()
    assert not schedule.is_in_flight(first)
    assert schedule.is_in_flight(second)
    handed: list[list[int]] = []
    while len(handed) < 4:
        handed += [list(chunk.items) for chunk in schedule.hand_out()]
        schedule.on_done(schedule.in_flight[0][0], 0.001)
    assert handed[:3] == [[0], [1], [2]]


def test_an_item_that_ends_every_rank_is_abandoned_and_the_others_are_done() -> None:
    schedule = MapSchedule(50, range(10))
    deadly, lost = 17, 0
    queue = schedule.hand_out()
    while queue:
        chunk = queue.pop(0)
        if chunk not in schedule.in_flight.get(chunk.rank, []):
            continue  # it was with a rank that is lost
        if deadly in chunk.items:
            schedule.on_rank_lost(chunk.rank)
            lost += 1
        else:
            schedule.on_done(chunk, 0.001 * len(chunk.items))
        schedule.validate()
        queue += schedule.hand_out()
    assert schedule.is_complete
    assert schedule.abandoned == {deadly}
    assert (lost, schedule.done) == (MOST_LOSSES, 49)


def test_a_rank_that_comes_back_is_given_items_again() -> None:
    schedule = MapSchedule(3, [5])
    (first,) = schedule.hand_out()
    assert list(schedule.on_rank_lost(5, comes_back=True).again) == [0]
    (again,) = schedule.hand_out()
    assert again.items == (0,)
    assert again.number > first.number


def test_without_a_rank_nothing_is_handed_out() -> None:
    schedule = MapSchedule(3, [5])
    schedule.hand_out()
    schedule.on_rank_lost(5)
    assert schedule.hand_out() == []
    assert schedule.left == 3
    assert not schedule.is_complete


def test_a_chunk_that_is_not_in_flight_is_not_done() -> None:
    schedule = MapSchedule(3, [5])
    (chunk,) = schedule.hand_out()
    schedule.on_done(chunk, 1.0)
    with pytest.raises(AssertionError, match="chunk 1 is not in flight"):
        schedule.on_done(chunk, 1.0)


@given(st.data())
def test_every_item_is_done_or_abandoned_whatever_happens(data: st.DataObject) -> None:
    items = data.draw(st.integers(0, 60))
    ranks = data.draw(st.integers(1, 5))
    size = data.draw(st.none() | st.integers(1, 7))
    schedule = MapSchedule(items, range(ranks), size)
    runs: Counter[int] = Counter()
    while not schedule.is_complete:
        handed = schedule.hand_out()
        schedule.validate()
        assert size is None or all(len(chunk.items) <= size for chunk in handed)
        assert all(schedule.in_flight[c.rank] for c in handed)
        assert not schedule.left or all(schedule.in_flight.values()), "a rank is idle"
        schedule.withdraw()
        schedule.validate()
        queued = [c for chunks in schedule.in_flight.values() for c in chunks[1:]]
        asked = [chunk for chunk in queued if chunk.number in schedule.withdrawn]
        if len(asked) < len(queued):
            idle = sum(not chunks for chunks in schedule.in_flight.values())
            assert len(schedule.withdrawn) >= idle, "a chunk waits while a rank is idle"
        rank = data.draw(st.sampled_from(schedule.busy_ranks))
        if asked and data.draw(st.booleans()):
            schedule.on_withdrawn(data.draw(st.sampled_from(asked)))
        elif data.draw(st.integers(0, 5)) == 0:
            alone = len(schedule.in_flight) == 1
            held = [i for chunk in schedule.in_flight[rank] for i in chunk.items]
            loss = schedule.on_rank_lost(rank, comes_back=alone or data.draw(st.booleans()))
            assert sorted([*loss.again, *loss.abandoned]) == sorted(held)
        elif data.draw(st.integers(0, 5)) == 0 and len(schedule.in_flight[rank][0].items) > 1:
            schedule.on_split(schedule.in_flight[rank][0])
        else:
            chunk = schedule.in_flight[rank][0]
            begun = len(chunk.items) if size else data.draw(st.integers(1, len(chunk.items)))
            schedule.on_done(chunk, data.draw(st.floats(0, 100)), begun)
            runs.update(chunk.items[:begun])
        schedule.validate()
        assert all(len(chunks) <= MOST_IN_FLIGHT for chunks in schedule.in_flight.values())
    assert all(times == 1 for times in runs.values())
    assert set(runs) | schedule.abandoned == set(range(items))


def test_with_one_chunk_a_rank_what_waits_goes_to_the_rank_that_is_free_first() -> None:
    schedule = MapSchedule(0, [0, 1], chunk_size=1, is_open=True, most_in_flight=1)
    schedule.on_taken(4, at_end=False)
    first, second = schedule.hand_out()
    assert (first.rank, second.rank) == (0, 1)
    schedule.on_done(second, 0.001)
    schedule.on_yielded()
    (third,) = schedule.hand_out()
    assert (third.rank, list(third.items)) == (1, [2])
    schedule.on_done(third, 0.001)
    schedule.on_yielded()
    (fourth,) = schedule.hand_out()
    assert (fourth.rank, list(fourth.items)) == (1, [3])
    assert schedule.hand_out() == []
    schedule.validate()
