"""The schedule of a map whose items are taken while it runs: what is taken when, and by whom."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.mesh.map.state.schedule import (
    FEWEST_ITEMS,
    MOST_ITEMS,
    WINDOW_BYTES,
    Chunk,
    MapSchedule,
)


def opened(ranks: int, chunk_size: int | None = None, **options: int) -> MapSchedule:
    return MapSchedule(0, range(ranks), chunk_size, is_open=True, **options)


def take(schedule: MapSchedule) -> int:
    """Take what is wanted; returns how much that was."""
    wanted = schedule.wanted
    schedule.on_taken(wanted, at_end=False)
    return wanted


def finish(schedule: MapSchedule, chunks: list[Chunk], item_s: float) -> None:
    for chunk in chunks:
        schedule.on_done(chunk, item_s * len(chunk.items))


def given_out(chunks: list[Chunk]) -> list[tuple[int, list[int]]]:
    return [(chunk.rank, list(chunk.items)) for chunk in chunks]


def test_the_first_items_are_two_for_each_rank_and_one_more() -> None:
    schedule = opened(4)
    assert take(schedule) == 12
    assert given_out(schedule.hand_out()) == [(0, [0]), (1, [1]), (2, [2]), (3, [3])]
    assert schedule.wanted == 0
    assert schedule.window == 4 * FEWEST_ITEMS


def test_without_yields_no_more_than_the_window_is_taken() -> None:
    schedule = opened(2, window=10)
    while take(schedule):
        finish(schedule, schedule.hand_out(), 0.001)
        schedule.validate()
    while schedule.done < 10:
        finish(schedule, schedule.hand_out(), 0.001)
    assert schedule.items == 10
    assert schedule.wanted == 0
    schedule.on_yielded(3)
    assert schedule.wanted == 3
    assert not schedule.is_complete


def test_the_window_follows_the_time_of_items_within_limits() -> None:
    schedule = opened(2)
    take(schedule)
    finish(schedule, schedule.hand_out(), 0.1)
    assert schedule.window == 40, "the work of two seconds for each rank"
    schedule.item_s = 100.0
    assert schedule.window == 2 * FEWEST_ITEMS
    schedule.item_s = 0.0
    assert schedule.window == 2 * MOST_ITEMS


def test_the_window_has_room_for_a_chunk_of_a_given_size_for_each_rank() -> None:
    schedule = opened(2, 5000)
    assert schedule.window == 2 * FEWEST_ITEMS * 5000
    take(schedule)
    schedule.item_s = 0.0
    assert schedule.window == 2 * FEWEST_ITEMS * 5000
    schedule.on_received(float(WINDOW_BYTES))
    assert schedule.window == 2 * 5000


def test_large_items_and_results_make_the_window_smaller() -> None:
    schedule = opened(4)
    take(schedule)
    finish(schedule, schedule.hand_out(), 0.001)
    assert schedule.window == 4 * MOST_ITEMS
    schedule.on_sent(WINDOW_BYTES / 100)
    schedule.on_received(WINDOW_BYTES / 100)
    assert schedule.window == 50
    schedule.on_received(WINDOW_BYTES * 9.0)
    assert schedule.window == 4, "an item for each rank"
    schedule.on_received(0.0)
    schedule.on_received(0.0)
    assert schedule.window == 4, "one small result does not make up for a large one"


def test_a_chunk_waits_until_it_is_full_while_there_are_results_to_yield() -> None:
    schedule = opened(2, 3)
    schedule.on_taken(4, at_end=False)
    assert given_out(schedule.hand_out(waiting=False)) == [(0, [0, 1, 2])]
    assert schedule.hand_out(waiting=True) == [], "others can be taken"
    schedule.on_taken(0, at_end=True)
    assert given_out(schedule.hand_out(waiting=False)) == [(1, [3])]


def test_a_chunk_that_no_item_can_be_taken_for_does_not_wait() -> None:
    schedule = opened(2, 3, window=4)
    schedule.on_taken(4, at_end=False)
    assert given_out(schedule.hand_out(waiting=False)) == [(0, [0, 1, 2])]
    assert given_out(schedule.hand_out(waiting=True)) == [(1, [3])]


def test_ranks_without_work_share_what_there_is_while_the_caller_waits() -> None:
    schedule = opened(3)
    schedule.on_taken(3, at_end=False)
    finish(schedule, schedule.hand_out(), 0.001)
    schedule.on_taken(8, at_end=False)
    assert schedule.hand_out(waiting=False) == []
    handed = given_out(schedule.hand_out(waiting=True))
    assert handed == [(0, [3, 4]), (1, [5, 6, 7]), (2, [8, 9, 10])]


def test_chunks_become_smaller_towards_an_end_that_is_known() -> None:
    schedule, endless = opened(4, expected=1000), opened(4)
    sizes: list[int] = []
    for one in (schedule, endless):
        for _ in range(100):
            wanted = one.wanted
            if one is schedule:
                wanted = min(wanted, 1000 - one.items)
            one.on_taken(wanted, at_end=False)
            handed = one.hand_out()
            sizes += [len(chunk.items) for chunk in handed] if one is schedule else []
            finish(one, [c for found in one.in_flight.values() for c in found], 0.0001)
            one.on_yielded(one.done - one.yielded)
    assert max(sizes) > 40
    assert sizes[-4:] == [1, 1, 1, 1]
    assert (schedule.total, endless.total) == (1000, None)
    schedule.on_taken(1, at_end=True)
    assert schedule.total == 1001


def test_the_next_items_are_due_once_a_chunk_of_them_has_room() -> None:
    schedule = opened(2, 4, window=16)
    assert take(schedule) == 16
    finish(schedule, schedule.hand_out(), 0.001)
    assert schedule.wanted == 0
    assert schedule.yields_until_wanted == 4
    schedule.on_yielded(3)
    assert schedule.yields_until_wanted == 1
    schedule.on_taken(0, at_end=True)
    assert schedule.yields_until_wanted is None


def test_after_the_end_the_map_is_complete_when_all_are_done() -> None:
    schedule = opened(1)
    schedule.on_taken(2, at_end=True)
    assert schedule.wanted == 0
    for _ in range(2):
        assert not schedule.is_complete
        finish(schedule, schedule.hand_out(), 1.0)
    assert schedule.is_complete
    with pytest.raises(AssertionError, match="closed"):
        schedule.on_taken(1, at_end=False)


def test_no_item_after_a_cut_is_handed_out_and_those_before_it_are() -> None:
    schedule = opened(2, 4)
    schedule.on_taken(30, at_end=False)
    first, second = schedule.hand_out()
    schedule.cut(5)
    schedule.validate()
    assert schedule.wanted == 0
    schedule.on_done(second, 0.1, begun=1)
    schedule.validate()
    assert given_out(schedule.hand_out()) == [(1, [5])]
    schedule.cut(7)  # the first of two errors counts
    loss = schedule.on_rank_lost(first.rank)
    assert list(loss.again) == [0, 1, 2, 3]
    while not schedule.is_complete:
        finish(schedule, schedule.in_flight[1][:1], 0.1)
        schedule.hand_out()
        schedule.validate()
    assert (schedule.done, schedule.dropped) == (6, 2)


def test_a_cut_reaches_back_behind_items_that_were_handed_out() -> None:
    schedule = opened(2, 2)
    schedule.on_taken(8, at_end=False)
    first, second = schedule.hand_out()
    schedule.cut(0)
    loss = schedule.on_rank_lost(second.rank)
    assert list(loss.again) == []
    schedule.on_done(first, 0.1, begun=1)
    schedule.validate()
    assert schedule.is_complete
    assert (schedule.done, schedule.dropped) == (1, 3)


def test_without_a_rank_nothing_is_taken() -> None:
    schedule = opened(1)
    schedule.on_rank_lost(0)
    assert schedule.wanted == 0
    assert schedule.yields_until_wanted is None


@given(
    st.integers(0, 40), st.integers(1, 4), st.none() | st.integers(1, 6),
    st.none() | st.integers(1, 12), st.none() | st.integers(0, 50), st.integers(0, 1 << 32),
)  # fmt: skip
def test_every_item_gets_its_result_and_the_window_is_kept(
    count: int, ranks: int, size: int | None, window: int | None, expected: int | None, seed: int
) -> None:
    random = Random(seed)  # many draws of hypothesis would take minutes
    schedule = MapSchedule(0, range(ranks), size, is_open=True, window=window, expected=expected)
    runs: set[int] = set()
    while not schedule.is_complete:
        waiting = schedule.yielded == len(runs) + len(schedule.abandoned)
        if schedule.is_open:
            held, most, wanted = schedule.items - schedule.yielded, schedule.window, schedule.wanted
            # A slow iterable: less is taken than is wanted.
            taken = min(random.randint(min(1, wanted), wanted), count - schedule.items)
            assert held + taken <= max(most, held)
            schedule.on_taken(taken, at_end=taken < wanted and schedule.items + taken == count)
        schedule.hand_out(waiting=waiting)
        schedule.validate()
        busy = schedule.busy_ranks
        if busy and random.random() < 0.8:
            rank = random.choice(busy)
            chunk = schedule.in_flight[rank][0]
            if random.random() < 0.2:
                schedule.on_rank_lost(rank, comes_back=True)
            else:
                begun = len(chunk.items) if size else random.randint(1, len(chunk.items))
                schedule.on_done(chunk, random.choice([0.0, 0.001, 0.1, 10.0]), begun)
                schedule.on_sent(random.choice([0.0, 100.0, 1e7, 1e9]))
                schedule.on_received(random.choice([0.0, 100.0, 1e7, 1e9]))
                runs.update(chunk.items[:begun])
        elif not waiting:
            there = schedule.done + len(schedule.abandoned) - schedule.yielded
            schedule.on_yielded(random.randint(1, there))
        elif not busy and schedule.is_open:
            assert schedule.wanted or schedule.items == count, "it stands still"
        schedule.validate()
    assert runs | schedule.abandoned == set(range(count))


@given(st.data())
def test_a_cut_leaves_exactly_the_items_up_to_it_to_be_done(data: st.DataObject) -> None:
    schedule = MapSchedule(0, range(data.draw(st.integers(1, 3))), None, is_open=True)
    last: int | None = None
    runs: set[int] = set()
    for _ in range(data.draw(st.integers(1, 30))):
        if schedule.is_open:
            schedule.on_taken(min(schedule.wanted, 5), at_end=False)
        schedule.hand_out()
        busy = schedule.busy_ranks
        if not busy:
            break
        rank = data.draw(st.sampled_from(busy))
        chunk = schedule.in_flight[rank][0]
        if data.draw(st.integers(0, 6)) == 0:
            schedule.on_rank_lost(rank, comes_back=True)
        else:
            begun = data.draw(st.integers(1, len(chunk.items)))
            schedule.on_done(chunk, 0.001, begun)
            runs.update(chunk.items[:begun])
            if data.draw(st.integers(0, 3)) == 0:
                at = chunk.items[data.draw(st.integers(0, begun - 1))]
                last = at if last is None else min(last, at)
                schedule.cut(at)
        schedule.validate()
    if last is None:
        return
    while not schedule.is_complete:
        schedule.hand_out()
        for chunk in [found[0] for found in schedule.in_flight.values() if found]:
            schedule.on_done(chunk, 0.001)
            runs.update(chunk.items)
        schedule.validate()
    assert set(range(last + 1)) <= runs | schedule.abandoned
