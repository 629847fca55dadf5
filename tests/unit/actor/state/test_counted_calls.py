"""What the table of calls enters in the counts of a call, from its first answer to its last."""

from __future__ import annotations

import pytest

from monarch._src.actor.state.calls import CallTable, PendingCall
from monarch._src.actor.state.endpoint_metrics import EndpointCounts
from monarch._src.failures.report import RankFailure
from monarch._src.shape import Extent, Region
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import DIED, OK, RAISED
from monarch._src.wire.process_codec import Figures, Key

FOUR = Region.of_extent(Extent(("gpus",), (4,)))
KEY = Key(1, "m", "A", "a", "e", "call")
DEATH = RankFailure("m", 0, {}, "", None, "h", 1, "proc died", "", "killed by SIGKILL")
ANSWER = Payload(b"12345", [b"6789"])


class Clock:
    """Says what it is set to."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Looking(PendingCall):
    """Looks at its counts whenever it is told something."""

    accepts_runs = True

    def __init__(self, counts: EndpointCounts | None, mesh: int = 1) -> None:
        super().__init__(mesh, None, FOUR)
        self.counts = counts
        self.seen: list[Figures] = []

    def _look(self) -> None:
        if self.counts is not None:
            self.seen.append(self.counts.figures(KEY, 0))

    def on_answer(self, position: int, payload: Payload) -> None:
        self._look()

    def on_equal_answers(self, first: int, count: int, payload: Payload) -> None:
        self._look()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        self._look()

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self._look()


def begun(at: int = 0) -> tuple[Clock, CallTable, Looking]:
    """A call of four ranks, in flight since then."""
    clock, counts = Clock(), EndpointCounts(0)
    table, call = CallTable(clock), Looking(counts)
    call.begun_ns = at
    counts.sent(0)
    table.open(call)
    return clock, table, call


def test_a_call_ends_with_its_last_answer() -> None:
    clock, table, call = begun(at=100)
    for position, now in enumerate((150, 160, 170, 400)):
        clock.now = now
        table.answer(call.number, position, OK, ANSWER)
    assert [seen.timed for seen in call.seen] == [0, 0, 0, 1], "counted before it is told"
    assert [seen.in_flight for seen in call.seen] == [1, 1, 1, 0]
    assert [seen.bytes_in for seen in call.seen] == [9, 18, 27, 36]
    assert (call.seen[-1].total_ns, call.seen[-1].max_ns) == (300, 300)
    assert call.seen[-1].errors == 0


def test_answers_that_came_as_one_count_for_each_rank() -> None:
    clock, table, call = begun()
    table.answer_run(call.number, 1, 2, OK, ANSWER)
    clock.now = 30
    table.answer_run(call.number, 0, 4, OK, ANSWER)  # two of them have answered
    assert [seen.bytes_in for seen in call.seen] == [18, 27, 36]
    assert [seen.timed for seen in call.seen] == [0, 0, 1]
    assert call.seen[-1].total_ns == 30

    clock, table, call = begun()
    clock.now = 50
    table.answer_run(call.number, 0, 4, RAISED, ANSWER)
    assert (call.seen[-1].errors, call.seen[-1].bytes_in, call.seen[-1].timed) == (1, 36, 1)


def test_a_call_of_which_many_ranks_fail_is_one_error_and_ends_with_its_last_rank() -> None:
    clock, table, call = begun()
    clock.now = 50
    table.answer(call.number, 2, RAISED, ANSWER)
    table.answer(call.number, 0, DIED, ANSWER)
    table.on_rank_lost(call.number, 1, DEATH)
    clock.now = 70
    table.on_proc_lost(1, 3, DEATH)
    assert [seen.errors for seen in call.seen] == [1, 1, 1, 1]
    assert [seen.timed for seen in call.seen] == [0, 0, 0, 1]
    assert call.seen[-1].total_ns == 70
    assert call.seen[-1].bytes_in == 18, "the dead send nothing"


def test_second_answers_and_answers_to_closed_calls_count_for_nothing() -> None:
    _, table, call = begun()
    for position in (0, 0, 1, 2, 3, 3, 0):
        table.answer(call.number, position, OK, ANSWER)
    assert len(call.seen) == 4
    assert call.counts is not None
    assert call.counts.figures(KEY, 0) == call.seen[-1]


def test_a_call_that_is_not_counted_asks_for_no_time() -> None:
    table, call = CallTable(), Looking(None)
    number = table.open(call)
    for position in range(4):
        table.answer(number, position, OK, NO_PAYLOAD)
    assert len(table) == 0


def test_a_table_without_a_clock_refuses_to_count() -> None:
    table, call = CallTable(), Looking(EndpointCounts(0))
    number = table.open(call)
    for position in range(3):
        table.answer(number, position, OK, NO_PAYLOAD)
    with pytest.raises(RuntimeError, match="table with a clock"):
        table.answer(number, 3, OK, NO_PAYLOAD)


def test_a_call_that_is_dropped_is_told_nothing_more() -> None:
    _, table, call = begun()
    table.answer(call.number, 0, OK, ANSWER)
    table.drop(call.number)
    table.answer(call.number, 1, OK, ANSWER)
    table.on_proc_lost(1, 2, DEATH)
    table.drop(call.number)
    assert (len(table), len(call.seen)) == (0, 1)
