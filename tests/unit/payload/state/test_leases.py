"""Segments: lent, returned, used again or freed; never used again while somebody may see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import TypeAlias

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from monarch._src.payload.state import leases
from monarch._src.payload.state.leases import (
    LENT,
    MOST_LOANS,
    MOST_SEGMENTS,
    POOL_BYTES,
    POOLED_S,
    RETURNED,
    SMALLEST,
    SPOILED,
    TAKEN,
    Free,
    Lending,
    Use,
)


def use(table: Lending, size: int = 1000) -> int:
    """A segment that holds a message of that size."""
    found, _ = table.wanted(size)
    assert found is not None
    return found.segment


def words(*values: int) -> list[int]:
    return [*values, *([LENT] * 8)]


def test_a_segment_that_was_returned_holds_the_next_message_of_its_size() -> None:
    table = Lending()
    first = use(table, 100_000)
    assert table.lent(first, ["a"]) == 0
    assert table.let_go(first, 1.0) == []
    assert table.read(first, words(RETURNED), 2.0) == []
    assert table.wanted(120_000) == (Use(first, SMALLEST, new=False), [])


def test_a_segment_is_not_used_again_while_one_receiver_has_it() -> None:
    table = Lending()
    first = use(table)
    assert table.lent(first, ["a", "b"]) == 0
    table.let_go(first, 1.0)
    table.read(first, words(RETURNED, TAKEN), 2.0)
    assert use(table) != first
    table.read(first, words(RETURNED, RETURNED), 3.0)
    assert use(table) == first


def test_a_message_that_may_be_sent_again_keeps_its_segment() -> None:
    table = Lending()
    first = use(table)
    table.lent(first, ["a"])
    table.read(first, words(RETURNED), 2.0)
    assert use(table) != first
    assert table.lent(first, ["a once more"]) == 1


def test_a_message_that_nobody_got_leaves_its_segment_to_the_next() -> None:
    table = Lending()
    first = use(table)
    table.lent(first, ["a"])
    table.unsent(first, [0], 1.0)
    table.let_go(first, 1.0)
    assert use(table) == first


def test_what_a_dead_receiver_had_is_freed_and_not_taken_from_others() -> None:
    table = Lending()
    first = use(table)
    table.lent(first, ["a", "b"])
    table.let_go(first, 1.0)
    assert table.node_gone("a") == []
    assert table.read(first, words(LENT, RETURNED), 2.0) == [Free(first, shared=True)]


def test_what_a_fork_of_its_receiver_may_see_is_freed() -> None:
    table = Lending()
    first = use(table)
    table.lent(first, ["a"])
    table.let_go(first, 1.0)
    assert table.read(first, words(SPOILED), 2.0) == [Free(first, shared=True)]


def test_a_receiver_may_be_told_of_by_another_name_later() -> None:
    table = Lending()
    first = use(table)
    table.lent(first, ["whoever is rank 3"])
    table.renamed("whoever is rank 3", "3")
    table.let_go(first, 1.0)
    assert table.node_gone("3") == [Free(first, shared=True)]


def test_the_pool_gives_back_what_waits_too_long() -> None:
    table = Lending()
    first = use(table)
    table.let_go(first, 10.0)
    assert table.time_passed(10.0 + POOLED_S / 2) == []
    assert table.time_passed(10.0 + POOLED_S) == [Free(first, shared=False)]
    assert not table


def test_the_pool_has_bounds_in_bytes_and_gives_back_the_oldest() -> None:
    table = Lending()
    half = POOL_BYTES // 2
    numbers = [use(table, half) for _ in range(3)]
    freed = [table.let_go(number, float(at)) for at, number in enumerate(numbers)]
    assert freed == [[], [], [Free(numbers[0], shared=False)]]
    large = use(table, POOL_BYTES + 1)
    assert table.let_go(large, 9.0) == [Free(large, shared=False)], "larger than all of the pool"


def test_there_are_only_so_many_segments() -> None:
    table = Lending()
    numbers = [use(table, 2 * SMALLEST) for _ in range(MOST_SEGMENTS)]
    assert table.wanted(1) == (None, [])
    table.let_go(numbers[5], 1.0)
    found, freed = table.wanted(1)
    assert freed == [Free(numbers[5], shared=False)], "one of another size makes room"
    assert found is not None
    assert found.new


def test_a_message_can_go_to_only_so_many() -> None:
    table = Lending()
    first = use(table)
    assert table.lent(first, ["n"] * MOST_LOANS) == 0
    assert table.lent(first, ["one more"]) is None


def test_when_all_ends_what_others_have_mapped_is_left_to_them() -> None:
    table = Lending()
    lent, pooled = use(table), use(table)
    table.lent(lent, ["a"])
    table.let_go(lent, 0.0)
    table.let_go(pooled, 0.0)
    assert table.closed() == [Free(lent, shared=True), Free(pooled, shared=False)]
    assert not table


# --- every order of events ------------------------------------------------------------------------

Step: TypeAlias = Callable[["World"], object]


class World:
    """A table, and what is true of it: who has which segment."""

    def __init__(self) -> None:
        self.table = Lending()
        self.views: dict[tuple[int, int], str] = {}  # by segment and word: who may see it
        self.spoiled: set[int] = set()
        self.freed: set[int] = set()
        self.held: set[int] = set()
        self.now = 0.0

    def check(self, freed: list[Free]) -> None:
        for one in freed:
            assert one.segment not in self.freed, "freed once"
            seen = any(number == one.segment for number, _ in self.views)
            assert one.shared or not seen, "memory is taken from nobody"
            assert one.shared == (one.segment in self.spoiled)
            self.freed.add(one.segment)
        self.table.validate()
        for number in set(self.table.segments) | self.held:
            in_use = number in self.held or any(n == number for n, _ in self.views)
            assert number in self.table.segments or not in_use or number in self.spoiled

    def want(self) -> None:
        found, freed = self.table.wanted(1)
        self.check(freed)
        if found is not None:
            assert not any(number == found.segment for number, _ in self.views)
            assert found.segment not in self.held | self.spoiled | self.freed
            self.held.add(found.segment)

    def lend(self, number: int, *nodes: str) -> None:
        first = self.table.lent(number, nodes)
        assert first is not None
        for word, node in enumerate(nodes, first):
            self.views[number, word] = node
        self.check([])

    def returns(self, number: int, word: int, value: int) -> None:
        del self.views[number, word]
        if value == SPOILED:
            self.spoiled.add(number)
        now = [LENT] * 16
        now[word] = value
        self.check(self.table.read(number, now, self.now))

    def unsent(self, number: int, word: int) -> None:
        del self.views[number, word]
        self.check(self.table.unsent(number, [word], self.now))

    def let_go(self, number: int) -> None:
        self.held.remove(number)
        self.check(self.table.let_go(number, self.now))

    def dies(self, node: str) -> None:
        hit = {key for key, name in self.views.items() if name == node}
        for number, word in hit:
            del self.views[number, word]
            self.spoiled.add(number)
        self.check(self.table.node_gone(node))

    def look(self) -> None:
        self.now += POOLED_S
        self.check(self.table.time_passed(self.now))

    def steps(self) -> Iterator[Step]:
        yield World.want
        yield World.look
        for node in sorted(set(self.views.values())):
            yield partial(World.dies, node=node)
        for number in sorted(self.held):
            yield partial(World.let_go, number=number)
            if self.table.segments[number].words < 2:
                yield lambda world, number=number: world.lend(number, "a", "b")
        for number, word in sorted(self.views):
            yield partial(World.unsent, number=number, word=word)
            for value in (RETURNED, SPOILED):
                yield partial(World.returns, number=number, word=word, value=value)


def test_no_order_of_events_reuses_or_loses_a_segment() -> None:
    """Every sequence of nine events, with two segments at most and two receivers of each."""
    most, leases.MOST_SEGMENTS = leases.MOST_SEGMENTS, 2
    seen: set[str] = set()
    ends = 0
    try:
        worlds = [World()]
        for _ in range(9):
            later: list[World] = []
            for world in worlds:
                for step in list(world.steps()):
                    other = deepcopy(world)
                    step(other)
                    state = repr(sorted(vars(other).items(), key=lambda item: item[0])) + repr(
                        other.table.segments
                    )
                    state = state.replace(repr(other.table), "")
                    if state not in seen:
                        seen.add(state)
                        later.append(other)
                        ends += not other.table
            worlds = later
    finally:
        leases.MOST_SEGMENTS = most
    assert ends > 10
    assert len(seen) > 1000


class Traffic(RuleBasedStateMachine):
    """Many segments and receivers, at random; in the end everybody returns what he has."""

    @initialize()
    def begin(self) -> None:
        self.world = World()

    @rule()
    def want(self) -> None:
        self.world.want()

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def lend(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.world.held)))
        if self.world.table.segments[number].words < 12:
            self.world.lend(number, *data.draw(st.lists(st.sampled_from("abcd"), max_size=4)))

    @precondition(lambda self: self.world.views)
    @rule(data=st.data(), value=st.sampled_from([RETURNED, SPOILED]))
    def returns(self, data: st.DataObject, value: int) -> None:
        self.world.returns(*data.draw(st.sampled_from(sorted(self.world.views))), value)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.world.let_go(data.draw(st.sampled_from(sorted(self.world.held))))

    @rule(node=st.sampled_from("abcd"))
    def dies(self, node: str) -> None:
        self.world.dies(node)

    @rule()
    def look(self) -> None:
        self.world.look()

    @invariant()
    def is_valid(self) -> None:
        if hasattr(self, "world"):
            self.world.table.validate()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for number in sorted(self.world.held):
            self.world.let_go(number)
        for number, word in sorted(self.world.views):
            self.world.returns(number, word, RETURNED)
        self.world.look()
        assert not self.world.table, "nothing is left"


TestTraffic = Traffic.TestCase
TestTraffic.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
