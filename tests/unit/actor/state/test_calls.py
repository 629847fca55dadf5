"""The table of calls: each rank's end is told once, whatever comes, in whatever order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from monarch._src.actor.state.calls import CallTable, PendingCall
from monarch._src.failures.report import RankFailure
from monarch._src.shape import Extent, Region
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import DIED, OK, RAISED

GRID = Region.of_extent(Extent(("hosts", "gpus"), (2, 3)))
DEATH = RankFailure("m", 0, {}, "", None, "h", 1, "proc died", "", "killed by SIGKILL")


class Recorded(PendingCall):
    """Notes what it is told, as (position, what)."""

    def __init__(self, mesh: int, region: Region) -> None:
        super().__init__(mesh, None, region)
        self.told: list[tuple[int, str]] = []
        self.waiting_when_told: list[int] = []

    def _note(self, position: int, what: str) -> None:
        self.told.append((position, what))
        self.waiting_when_told.append(len(self.owing()))

    def on_answer(self, position: int, payload: Payload) -> None:
        self._note(position, bytes(payload.body).decode())

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        self._note(position, {RAISED: "raised", DIED: "died"}[status])

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self._note(position, "lost")


def value(text: str) -> Payload:
    return Payload(text.encode())


def test_each_call_has_a_number_of_its_own_and_none_is_0() -> None:
    table = CallTable()
    numbers = [table.open(Recorded(1, GRID)) for _ in range(100)]
    numbers += [table.new_number() for _ in range(100)]
    assert len(set(numbers)) == 200
    assert 0 not in numbers


def test_an_answer_is_told_with_the_place_of_its_rank_in_the_slice() -> None:
    table, call = CallTable(), Recorded(1, GRID.slice(gpus=1))
    number = table.open(call)
    table.answer(number, 1, OK, value("one"))
    table.answer(number, 0, RAISED, NO_PAYLOAD)
    assert call.told == [(1, "one"), (0, "raised")]
    assert len(table) == 0


def test_only_the_last_answer_finds_nobody_waiting() -> None:
    table, call = CallTable(), Recorded(1, GRID)
    number = table.open(call)
    for position in range(6):
        table.answer(number, position, OK, value(""))
    assert call.waiting_when_told == [5, 4, 3, 2, 1, 0]


def test_a_death_is_told_to_the_calls_of_its_rank_and_to_no_other() -> None:
    table = CallTable()
    whole, row, other_row = (
        Recorded(1, GRID),
        Recorded(1, GRID.slice(hosts=1)),
        Recorded(1, GRID.slice(hosts=0)),
    )
    other_mesh = Recorded(2, GRID)
    for call in (whole, row, other_row, other_mesh):
        table.open(call)
    table.on_proc_lost(1, 4, DEATH)
    assert whole.told == [(4, "lost")]
    assert row.told == [(1, "lost")]
    assert other_row.told == []
    assert other_mesh.told == []


def test_a_rank_that_has_answered_cannot_be_lost_nor_one_that_was_lost_answer() -> None:
    table, call = CallTable(), Recorded(1, GRID)
    number = table.open(call)
    table.answer(number, 4, OK, value("first"))
    table.on_proc_lost(1, 4, DEATH)
    table.on_proc_lost(1, 5, DEATH)
    table.answer(number, 5, OK, value("late"))
    table.on_rank_lost(number, 5, DEATH)
    assert call.told == [(4, "first"), (5, "lost")]


@pytest.mark.parametrize(("number", "position"), [(0, 0), (99, 0), (1, 6), (1, -1)])
def test_an_answer_that_nobody_waits_for_is_ignored(number: int, position: int) -> None:
    table, call = CallTable(), Recorded(1, GRID)
    assert table.open(call) == 1
    table.answer(number, position, OK, value(""))
    table.on_rank_lost(number, position, DEATH)
    assert call.told == []
    assert len(table) == 1


class Confused(Recorded):
    """Cannot make sense of an answer."""

    def on_answer(self, position: int, payload: Payload) -> None:
        raise ValueError("no such format")


def test_an_answer_that_makes_no_sense_is_told_as_a_failure_and_raised_here() -> None:
    table, call = CallTable(), Confused(1, GRID.slice(hosts=0, gpus=0))
    number = table.open(call)
    with pytest.raises(ValueError, match="no such format"):
        table.answer(number, 0, OK, value(""))
    assert call.told == [(0, "lost")]
    assert len(table) == 0


class Reentrant(Recorded):
    """Opens a call whenever it is told something, as a callback of a future may."""

    table: CallTable

    def on_lost(self, position: int, failure: RankFailure) -> None:
        super().on_lost(position, failure)
        self.table.open(Recorded(self.mesh, self.region))


def test_calls_may_be_opened_while_a_death_is_told() -> None:
    table = CallTable()
    for _ in range(2):
        call = Reentrant(1, GRID)
        call.table = table
        table.open(call)
    table.on_proc_lost(1, 0, DEATH)
    assert len(table) == 4


class TakesRuns(Recorded):
    """Is told of equal answers of neighbours at once."""

    accepts_runs = True

    def on_equal_answers(self, first: int, count: int, payload: Payload) -> None:
        for position in range(first, first + count):
            assert not self.owed >> position & 1
            self.on_answer(position, payload)


MESHES = {1: GRID, 2: Region.of_extent(Extent(("gpus",), (3,)))}


class Interleavings(RuleBasedStateMachine):
    """Answers, repeats, strays and deaths in any order; the model is what came first."""

    opened = Bundle("opened")

    @initialize()
    def begin(self) -> None:
        self.table = CallTable()
        self.calls: dict[int, Recorded] = {}
        self.first: dict[int, dict[int, str]] = {}
        self.answers = 0

    @rule(target=opened, mesh=st.sampled_from([1, 2]), gpu=st.none() | st.integers(0, 2))
    def open(self, mesh: int, gpu: int | None) -> int:
        region = MESHES[mesh] if gpu is None else MESHES[mesh].slice(gpus=gpu)
        call = (Recorded if gpu else TakesRuns)(mesh, region)
        number = self.table.open(call)
        self.calls[number], self.first[number] = call, {}
        return number

    @rule(target=opened)
    def a_number_that_is_no_call(self) -> int:
        return self.table.new_number()

    def _came(self, number: int, position: int, what: str) -> None:
        call = self.calls.get(number)
        if call is not None and 0 <= position < len(call.region):
            self.first[number].setdefault(position, what)

    @rule(number=opened, position=st.integers(-1, 6), status=st.sampled_from([OK, RAISED, DIED]))
    def answer(self, number: int, position: int, status: int) -> None:
        self.answers += 1
        text = f"answer {self.answers}"
        self.table.answer(number, position, status, value(text))
        self._came(number, position, {OK: text, RAISED: "raised", DIED: "died"}[status])

    @rule(
        number=opened,
        first=st.integers(-1, 6),
        count=st.integers(0, 7),
        status=st.sampled_from([OK, RAISED, DIED]),
    )
    def answer_run(self, number: int, first: int, count: int, status: int) -> None:
        self.answers += 1
        text = f"answer {self.answers}"
        self.table.answer_run(number, first, count, status, value(text))
        if first >= 0:
            for position in range(first, first + count):
                self._came(number, position, {OK: text, RAISED: "raised", DIED: "died"}[status])

    @rule(number=opened, position=st.integers(0, 6))
    def lost_on_the_way(self, number: int, position: int) -> None:
        self.table.on_rank_lost(number, position, DEATH)
        self._came(number, position, "lost")

    @rule(mesh=st.sampled_from([1, 2, 3]), rank=st.integers(0, 6))
    def proc_dies(self, mesh: int, rank: int) -> None:
        self.table.on_proc_lost(mesh, rank, DEATH)
        for number, call in self.calls.items():
            if call.mesh == mesh and rank in call.region:
                self._came(number, call.region.position(rank), "lost")

    @rule(numbers=st.lists(opened, max_size=2))
    def dies_twice(self, numbers: list[int]) -> None:
        for _ in range(2):
            for number in numbers:
                self.lost_on_the_way(number, 0)

    @invariant()
    def each_rank_was_told_once_what_came_first(self) -> None:
        for number, call in self.calls.items():
            assert dict(call.told) == self.first[number]
            assert max(Counter(position for position, _ in call.told).values(), default=1) == 1

    @invariant()
    def open_are_those_that_wait_for_somebody(self) -> None:
        for number, call in self.calls.items():
            assert call.owing() == [
                p for p in range(len(call.region)) if p not in self.first[number]
            ]
        waiting = [call for call in self.calls.values() if call.owed]
        assert self.table.calls() == waiting


Interleavings.TestCase.settings = settings(max_examples=50, stateful_step_count=40)
test_any_interleaving = Interleavings.TestCase
