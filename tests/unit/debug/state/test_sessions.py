"""Who is paused and who may say what to whom: every transition, and what is owed to consoles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.debug.state.sessions import (
    NOT_THERE,
    TRANSITIONS,
    Action,
    AnswerConsole,
    DebugTable,
    NotifyWatchers,
    Phase,
    SendToRank,
)
from monarch._src.wire.messages import AskDebugger, Debugged, DebuggerAnswered, PausedAt
from monarch._src.wire.messages.debugger import (
    ATTACH,
    COMMAND,
    COMPLETE,
    ENDED,
    IN_EDITOR,
    RELEASE,
    RUNNING,
    STEPPING,
    STOPPED,
)

PLACE = (7, 3)
TARGET = (7, 3, 1)


def at(line: int = 5) -> PausedAt:
    return PausedAt("t", "T", "step", ["gpus"], [8], 3, "T.step", "t.py", line, "x = 1", "", "step")


@pytest.fixture
def table() -> Iterator[DebugTable]:
    """A table whose invariants are looked at when the test has ended."""
    made = DebugTable()
    yield made
    made.validate()


def say(table: DebugTable, state: int, line: int | None = None, text: str = "") -> list[Action]:
    place = None if line is None else at(line)
    return table.on_reported(PLACE, Debugged(1, state, text, "(Pdb) ", place), 1.0)


def ask(
    table: DebugTable,
    who: str = "me",
    what: int = COMMAND,
    text: str = "p x",
    *,
    take: bool = False,
) -> list[Action]:
    return table.on_request(who, AskDebugger(9, what, [TARGET], text, take))


def answer(actions: list[Action]) -> DebuggerAnswered:
    (found,) = [action.message for action in actions if isinstance(action, AnswerConsole)]
    return found


def told(actions: list[Action]) -> list[bool]:
    return [action.message.paused for action in actions if isinstance(action, NotifyWatchers)]


def test_a_first_stop_is_told_and_listed(table: DebugTable) -> None:
    assert told(say(table, STOPPED, 5)) == [True]
    (listed,) = table.listed(7, None, 3.0)
    assert (listed.rank, listed.session, listed.since_s, listed.at.line) == (3, 1, 2.0, 5)
    assert table.listed(7, [4], 3.0) == []
    assert table.listed(8, None, 3.0) == []
    assert [message.paused for message in table.pause_notices()] == [True]


def test_a_command_is_passed_on_and_answered_to_who_gave_it(table: DebugTable) -> None:
    say(table, STOPPED, 5)
    (order,) = ask(table)
    assert isinstance(order, SendToRank)
    assert (order.place, order.message.text) == (PLACE, "p x")
    actions = say(table, STOPPED, text="3\n")
    assert (answer(actions).text, answer(actions).state, told(actions)) == ("3\n", STOPPED, [])


def test_a_second_command_waits_for_no_first_one_but_is_refused(table: DebugTable) -> None:
    say(table, STOPPED, 5)
    ask(table)
    assert "a command is running" in answer(ask(table, "other")).problem


def test_a_step_is_answered_where_it_stops(table: DebugTable) -> None:
    say(table, STOPPED, 5)
    ask(table, text="next")
    steps = say(table, STEPPING)
    assert [type(action) for action in steps] == [NotifyWatchers]
    assert told(steps) == [False]
    assert "the program is running" in answer(ask(table, what=ATTACH)).problem
    stopped = say(table, STOPPED, 6, "> t.py(6)\n")
    assert told(stopped) == [True]
    assert (answer(stopped).text, answer(stopped).at) == ("> t.py(6)\n", at(6))


@pytest.mark.parametrize("state", [RUNNING, ENDED])
def test_what_runs_on_answers_at_once(table: DebugTable, state: int) -> None:
    say(table, STOPPED, 5)
    ask(table, text="continue")
    actions = say(table, state)
    assert answer(actions).state == state
    assert told(actions) == [False]
    assert bool(table) == (state == RUNNING)


def test_a_rank_that_dies_answers_what_it_owes(table: DebugTable) -> None:
    say(table, STOPPED, 5)
    ask(table)
    actions = table.on_proc_ended(PLACE)
    assert answer(actions).problem == "its process has ended"
    assert told(actions) == [False]
    assert not table
    assert answer(ask(table)).problem == NOT_THERE


def test_what_one_console_holds_no_other_commands(table: DebugTable) -> None:
    say(table, STOPPED, 5)
    assert answer(ask(table, "me", ATTACH)).problem == ""
    assert table.holders() == {"me"}
    for what in (ATTACH, COMMAND, COMPLETE, RELEASE):
        assert "me is attached to it" in answer(ask(table, "other", what)).problem
    assert answer(ask(table, "other", ATTACH, take=True)).problem == ""
    assert "other is attached to it" in answer(ask(table, "me")).problem
    table.on_console_gone("other")
    assert answer(ask(table, "me", ATTACH)).problem == ""
    assert answer(ask(table, "me", RELEASE)).problem == ""
    assert table.holders() == set()


def test_the_answer_to_a_console_that_is_gone_goes_to_nobody(table: DebugTable) -> None:
    say(table, STOPPED, 5)
    ask(table)
    table.on_console_gone("me")
    (found,) = [a for a in say(table, STOPPED, text="3") if isinstance(a, AnswerConsole)]
    assert found.console == ""
    assert isinstance(ask(table, "other")[0], SendToRank)


def test_a_rank_is_paused_until_its_last_thread_goes_on(table: DebugTable) -> None:
    say(table, STOPPED, 5)
    assert told(table.on_reported(PLACE, Debugged(2, STOPPED, "", "", at(9)), 2.0)) == [True]
    (still,) = [
        action.message for action in say(table, ENDED) if isinstance(action, NotifyWatchers)
    ]
    assert (still.paused, still.session, still.at) == (True, 2, at(9))  # where it stands now
    found = table.paused_at(PLACE)
    assert found is not None
    assert found.number == 2
    assert told(table.on_reported(PLACE, Debugged(2, ENDED, "", "", None), 3.0)) == [False]


def test_what_stands_in_an_editor_is_held_by_it_and_commanded_by_nobody(table: DebugTable) -> None:
    there = msgspec.structs.replace(at(5), why=IN_EDITOR)
    say(table, STOPPED, 5)
    table.on_reported(PLACE, Debugged(2, STOPPED, "", "", there), 2.0, "editor")
    say(table, ENDED)
    (listed,) = table.listed(7, None, 3.0)
    assert (listed.session, listed.holder) == (2, "editor")
    for what in (ATTACH, COMMAND, COMPLETE, RELEASE):
        for who in ("me", "editor"):
            asked = table.on_request(who, AskDebugger(9, what, [(7, 3, 2)], "p x", True))
            assert answer(asked).problem.startswith("editor debugs it in an editor")


def test_who_has_attached_is_known_to_who_would_take_the_rank(table: DebugTable) -> None:
    say(table, STOPPED, 5)
    assert table.holder_at(PLACE, "me") == ""
    ask(table, "other", ATTACH)
    assert (table.holder_at(PLACE, "me"), table.holder_at(PLACE, "other")) == ("other", "")


def test_what_is_no_transition_changes_nothing(table: DebugTable) -> None:
    assert say(table, RUNNING) == []
    assert say(table, ENDED) == []
    say(table, STOPPED, 5)
    for state in (STOPPED, STEPPING, RUNNING):
        assert say(table, state) == []
    (session,) = table.sessions[PLACE].values()
    assert session.phase is Phase.STOPPED


def test_every_phase_can_end() -> None:
    for phase, event in itertools.product(Phase, ("ended", "died")):
        assert TRANSITIONS[phase, event] is None


SESSIONS, NOTHING = st.sampled_from([1, 2]), st.just(0)
STATES = st.sampled_from([STOPPED, STEPPING, RUNNING, ENDED])
EVENTS = st.one_of(
    st.tuples(st.just("told"), SESSIONS, STATES),
    st.tuples(st.just("asked"), SESSIONS, st.sampled_from([ATTACH, RELEASE, COMMAND])),
    st.tuples(st.sampled_from(["gone", "died"]), NOTHING, NOTHING),
)


@given(st.lists(EVENTS, max_size=30), st.lists(st.sampled_from(["a", "b"]), min_size=30))
def test_in_any_order_of_events_each_question_is_answered_once(
    events: list[tuple[str, int, int]], consoles: list[str]
) -> None:
    table = DebugTable()
    owed = answered = paused = 0
    state = False
    for number, ((kind, session, what), console) in enumerate(zip(events, consoles, strict=False)):
        actions: list[Action] = []
        match kind:
            case "told":
                message = Debugged(session, what, "", "", at(number))
                actions = table.on_reported(PLACE, message, float(number))
            case "asked":
                owed += 1
                asked = AskDebugger(number, what, [(*PLACE, session)], "", number % 3 == 0)
                actions = table.on_request(console, asked)
            case "gone":
                table.on_console_gone(console)
            case _:
                actions = table.on_proc_ended(PLACE)
        answered += sum(isinstance(action, AnswerConsole) for action in actions)
        for tell in told(actions):
            state, paused = tell, paused + 1
        assert state == (table.paused_at(PLACE) is not None)
        table.validate()
    left = sum(one.owes is not None for here in table.sessions.values() for one in here.values())
    assert owed == answered + left
