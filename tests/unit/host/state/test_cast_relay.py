"""The relay of casts: every answer leaves once, in the right place, and none waits for the dead."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from monarch._src.host.state.cast_relay import HELD_S, CastTable, SendAnswers
from monarch._src.wire.messages import ELSEWHERE, OK, RAISED, Call, Cast

MESH, RANKS = 7, 6


def cast(call: int, *, each: bool = False, first: int = 0, count: int = RANKS) -> Cast:
    message = Call(1, call, "endpoint", 0, ["gpus"], [count])
    where = (first, (count,), (1,))
    return Cast("client", "", "client", MESH, call, where, [], call, each, message)


def told(found: list[SendAnswers]) -> list[tuple[int, int, int, bytes]]:
    """Every run as (position, count, status, body)."""
    runs: list[tuple[int, int, int, bytes]] = []
    for answers in found:
        end = 0
        for position, count, status, size in answers.message.runs:
            runs.append((position, count, status, bytes(answers.payload.body)[end : end + size]))
            end += size
        assert end == len(answers.payload.body)
    return runs


def test_answers_leave_together_when_the_last_has_come_equal_neighbours_once() -> None:
    table = CastTable()
    table.cast("client", cast(1), range(RANKS))
    for rank, body in zip([5, 0, 1, 3, 2], [b"z", b"a", b"a", b"b", b"a"], strict=True):
        assert table.answered("client", 1, rank, rank, OK, body, 0.0) == []
    assert table.after_poll() == []
    found = table.answered("client", 1, 4, 4, OK, b"b", 0.0)
    assert told(found) == [(0, 3, OK, b"a"), (3, 2, OK, b"b"), (5, 1, OK, b"z")]
    assert found[0].to == "client"
    assert found[0].message.call == 1
    assert len(table) == 0


def test_of_a_stream_what_has_come_leaves_at_the_end_of_each_look() -> None:
    table = CastTable()
    table.cast("client", cast(1, each=True), range(RANKS))
    table.answered("client", 1, 3, 3, OK, b"x", 0.0)
    table.answered("client", 1, 2, 2, OK, b"x", 0.0)
    assert told(table.after_poll()) == [(2, 2, OK, b"x")]
    assert table.after_poll() == []


def test_who_takes_long_is_not_waited_for_by_what_the_others_have_answered() -> None:
    table = CastTable()
    table.cast("client", cast(1), range(RANKS))
    assert table.next_deadline() is None
    for rank, now in ((0, 1.0), (1, 1.1), (3, 1.1)):
        assert table.answered("client", 1, rank, rank, OK, b"x", now) == []
    assert table.next_deadline() == 1.0 + HELD_S
    assert table.time_passed(1.0 + HELD_S / 2) == []
    assert told(table.time_passed(1.0 + HELD_S)) == [(0, 2, OK, b"x"), (3, 1, OK, b"x")]
    assert table.next_deadline() is None
    assert table.answered("client", 1, 2, 2, OK, b"x", 5.0) == []  # each time anew
    assert table.next_deadline() == 5.0 + HELD_S
    assert table.answered("client", 1, 4, 4, OK, b"y", 5.1) == []
    found = table.answered("client", 1, 5, 5, OK, b"y", 5.1)
    assert told(found) == [(2, 1, OK, b"x"), (4, 2, OK, b"y")]
    assert found[-1].last


def test_bad_news_does_not_wait() -> None:
    table = CastTable()
    table.cast("client", cast(1), range(RANKS))
    table.answered("client", 1, 0, 0, OK, b"x", 0.0)
    table.answered("client", 1, 1, 1, RAISED, b"x", 0.0)
    assert told(table.after_poll()) == [(0, 1, OK, b"x"), (1, 1, RAISED, b"x")]
    table.answered("client", 1, 2, 2, OK, b"y", 0.0)
    assert told(table.after_poll()) == [(2, 1, OK, b"y")]


def test_the_end_of_a_rank_lets_go_what_others_have_answered_and_waits_for_it_no_more() -> None:
    table = CastTable()
    table.cast("client", cast(1, first=2, count=3), [2, 3, 4])
    table.answered("client", 1, 3, 1, OK, b"x", 0.0)
    assert table.owes(MESH, 2)
    assert not table.owes(MESH, 3)
    assert told(table.ended(MESH, 2)) == [(1, 1, OK, b"x")]
    assert told(table.answered("client", 1, 4, 2, OK, b"y", 0.0)) == [(2, 1, OK, b"y")]
    assert len(table) == 0


def test_an_answer_that_went_elsewhere_is_awaited_no_more_and_not_sent_again() -> None:
    table = CastTable()
    table.cast("client", cast(1, count=2), range(2))
    table.answered("client", 1, 0, 0, ELSEWHERE, b"", 0.0)
    assert told(table.answered("client", 1, 1, 1, OK, b"y", 0.0)) == [(1, 1, OK, b"y")]


def test_a_cast_that_nobody_waits_for_is_not_kept() -> None:
    table = CastTable()
    table.cast("client", cast(0), range(RANKS))
    table.cast("client", cast(1), [])
    assert len(table) == 0
    assert table.answered("client", 0, 0, 0, OK, b"", 0.0) == []


class Interleavings(RuleBasedStateMachine):
    """Casts, answers, repeats, ends and looks in any order."""

    @initialize()
    def begin(self) -> None:
        self.table = CastTable()
        self.asked: dict[int, set[int]] = {}
        self.answered: dict[int, dict[int, bytes]] = {}
        self.got: dict[int, dict[int, bytes]] = {}
        self.dead: set[int] = set()
        self.lost: set[int] = set()
        self.now = 0.0

    def _note(self, found: list[SendAnswers]) -> None:
        for answers in found:
            assert answers.message.call not in self.lost
            got = self.got[answers.message.call]
            for position, count, _, body in told([answers]):
                for place in range(position, position + count):
                    assert place not in got
                    got[place] = body

    @rule(each=st.booleans())
    def cast(self, each: bool) -> None:
        number = len(self.asked) + 1
        living = [rank for rank in range(RANKS) if rank not in self.dead]
        self.table.cast(f"caller{number % 2}", cast(number, each=each), living)
        self.asked[number], self.answered[number], self.got[number] = set(living), {}, {}

    @rule(data=st.data(), body=st.sampled_from([b"", b"a", b"bb"]), bad=st.booleans())
    def answer(self, data: st.DataObject, body: bytes, bad: bool) -> None:
        number = data.draw(st.integers(0, len(self.asked) + 1))
        rank = data.draw(st.integers(0, RANKS - 1))
        if rank in self.dead:
            return
        status = RAISED if bad else OK
        to = f"caller{number % 2}"
        found = self.table.answered(to, number, rank, rank, status, body, self.now)
        if number in self.asked and number not in self.lost:
            self.answered[number].setdefault(rank, body)
        self._note(found)

    @rule(rank=st.integers(0, RANKS - 1))
    def end(self, rank: int) -> None:
        self.dead.add(rank)
        self._note(self.table.ended(MESH, rank))

    @rule()
    def look(self) -> None:
        self._note(self.table.after_poll())

    @rule(seconds=st.sampled_from([0.0, HELD_S / 3, HELD_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._note(self.table.time_passed(self.now))
        deadline = self.table.next_deadline()
        assert deadline is None or deadline > self.now

    @rule(which=st.integers(0, 1))
    def caller_ends(self, which: int) -> None:
        self.table.caller_lost(f"caller{which}")
        self.lost |= {number for number in self.asked if number % 2 == which}

    @invariant()
    def it_is_sound(self) -> None:
        self.table.validate()

    @invariant()
    def nothing_is_made_up_and_nothing_that_is_complete_is_held(self) -> None:
        for number, asked in self.asked.items():
            if number in self.lost:
                continue
            got, answered = self.got[number], self.answered[number]
            assert got.items() <= answered.items()
            if asked <= {*answered, *self.dead}:
                assert got == answered


Interleavings.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_any_interleaving = Interleavings.TestCase
