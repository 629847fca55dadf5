"""One session of the Debug Adapter Protocol over several ranks: numbers, answers, events, ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.debug.dap.state.multiplexer import (
    GONE,
    Action,
    BreakIn,
    Multiplexer,
    ToClient,
    ToRank,
)
from monarch._src.wire.dap_codec import DapError, Message, Unpacker, packed

NAMES = ("workers[gpus=0]", "workers[gpus=1]")


class Session:
    """A multiplexer between a client and two ranks, and what it has said to each."""

    def __init__(self) -> None:
        self.mux = Multiplexer(NAMES)
        self.client: list[Message] = []
        self.ranks: dict[int, list[Message]] = {0: [], 1: []}
        self.broken_into: list[int] = []
        self._numbers = itertools.count(1)

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ToClient(message):
                    self.client.append(message)
                case ToRank(at, message):
                    self.ranks[at].append(message)
                case BreakIn(at):
                    self.broken_into.append(at)

    def ask(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        self.take(
            self.mux.on_request(
                {"seq": number, "type": "request", "command": command, "arguments": arguments}
            )
        )
        return number

    def answer(self, at: int, body: Message | None = None, success: bool = True) -> None:
        """The rank answers the oldest question that it was asked."""
        asked = self.ranks[at].pop(0)
        self.take(
            self.mux.on_rank_message(
                at,
                {
                    "seq": 1, "type": "response", "request_seq": asked["seq"], "success": success,
                    "command": asked["command"], "body": body or {}, "message": "no",
                },
            )
        )  # fmt: skip

    def tell(self, at: int, event: str, **body: Any) -> None:
        self.take(
            self.mux.on_rank_message(at, {"seq": 1, "type": "event", "event": event, "body": body})
        )

    def said(self) -> Message:
        """The one thing that the client was told since the last look."""
        (message,) = self.client
        self.client.clear()
        return message

    def stop(self, at: int, thread: int = 1) -> int:
        """A thread of a rank stops; what the client knows it by."""
        self.tell(at, "stopped", threadId=thread, reason="breakpoint", allThreadsStopped=True)
        said = self.said()
        assert said["event"] == "stopped"
        assert said["body"]["allThreadsStopped"] is False
        return said["body"]["threadId"]


@pytest.fixture
def session() -> Iterator[Session]:
    """A session whose invariants are looked at when the test has ended."""
    made = Session()
    yield made
    made.mux.validate()


def test_what_concerns_all_is_asked_of_all_and_answered_once(session: Session) -> None:
    number = session.ask("initialize")
    session.answer(0, {"supportsSetVariable": True, "supportTerminateDebuggee": True})
    assert session.client == []
    session.answer(1, {"supportsSetVariable": True})
    said = session.said()
    assert (said["request_seq"], said["success"]) == (number, True)
    assert said["body"]["supportsSetVariable"]
    assert not said["body"]["supportTerminateDebuggee"]


def test_initialized_is_told_when_the_last_rank_is(session: Session) -> None:
    session.tell(0, "initialized")
    assert session.client == []
    session.tell(1, "initialized")
    assert session.said()["event"] == "initialized"


def test_equal_numbers_of_two_ranks_are_two_numbers(session: Session) -> None:
    first, second = session.stop(0), session.stop(1)
    assert first != second
    session.ask("stackTrace", threadId=second)
    assert session.ranks[0] == []
    assert session.ranks[1][0]["arguments"]["threadId"] == 1
    frames = [
        {"id": 7, "name": "step", "line": 3, "source": {"path": "a.py", "sourceReference": 0}},
        {"id": 8, "name": "<module>", "line": 1, "source": {"path": "<string>"}},
    ]
    session.answer(1, {"stackFrames": frames, "totalFrames": 2})
    (frame,) = session.said()["body"]["stackFrames"]
    session.ask("scopes", frameId=frame["id"])
    assert session.ranks[1][0]["arguments"] == {"frameId": 7}
    session.answer(1, {"scopes": [{"name": "Locals", "variablesReference": 9}]})
    (scope,) = session.said()["body"]["scopes"]
    session.ask("variables", variablesReference=scope["variablesReference"])
    assert session.ranks[1][0]["arguments"] == {"variablesReference": 9}
    session.answer(1, {"variables": [{"name": "x", "value": "1", "variablesReference": 0}]})
    assert session.said()["body"]["variables"][0]["variablesReference"] == 0


def test_threads_are_named_by_their_ranks(session: Session) -> None:
    session.ask("threads")
    session.answer(0, {"threads": [{"id": 1, "name": "MainThread"}]})
    session.answer(1, {"threads": [{"id": 1, "name": "MainThread"}, {"id": 2, "name": "loader"}]})
    found = session.said()["body"]["threads"]
    assert [one["name"] for one in found] == [*NAMES, "workers[gpus=1]: loader"]
    assert len({one["id"] for one in found}) == 3


def test_a_breakpoint_is_well_where_it_is_well_on_any_rank(session: Session) -> None:
    session.ask("setBreakpoints", source={"path": "a.py"}, breakpoints=[{"line": 3}])
    session.answer(0, {"breakpoints": [{"id": 5, "verified": False, "line": 3, "message": "no"}]})
    session.answer(1, {"breakpoints": [{"id": 5, "verified": True, "line": 4}]})
    (found,) = session.said()["body"]["breakpoints"]
    assert (found["verified"], found["line"]) == (True, 4)
    session.tell(0, "breakpoint", reason="changed", breakpoint={"id": 5, "verified": True})
    assert session.said()["body"]["breakpoint"]["id"] == found["id"]


def test_one_thread_goes_on_alone(session: Session) -> None:
    first, second = session.stop(0), session.stop(1)
    session.ask("continue", threadId=first)
    assert session.ranks[0][0]["arguments"] == {"threadId": 1, "singleThread": True}
    session.answer(0, {"allThreadsContinued": False})
    assert session.said()["success"]
    assert session.mux.stopped == [second]
    session.tell(0, "continued", threadId=1, allThreadsContinued=True)
    assert session.client == []  # it was told by the answer


def test_a_frame_of_a_thread_that_has_gone_on_is_refused(session: Session) -> None:
    thread = session.stop(0)
    session.ask("stackTrace", threadId=thread)
    session.answer(0, {"stackFrames": [{"id": 7, "name": "f", "line": 1}]})
    (frame,) = session.said()["body"]["stackFrames"]
    session.ask("next", threadId=thread)
    session.answer(0)
    session.client.clear()
    session.ask("scopes", frameId=frame["id"])
    assert session.said()["message"] == GONE


def test_pause_breaks_in_where_users_code_is(session: Session) -> None:
    thread = session.stop(1)
    session.ask("pause", threadId=thread)
    assert session.broken_into == [1]
    assert session.said()["success"]


def test_a_rank_that_ends_owes_nothing_more(session: Session) -> None:
    thread = session.stop(0)
    number = session.ask("stackTrace", threadId=thread)
    session.take(session.mux.on_rank_gone(0, "killed by SIGKILL"))
    refused, *told = session.client
    assert (refused["request_seq"], refused["success"]) == (number, False)
    assert "killed by SIGKILL" in refused["message"]
    assert [one["event"] for one in told] == ["continued", "thread", "output"]
    session.client.clear()
    session.tell(0, "stopped", threadId=1)
    assert session.client == []
    session.ask("threads")
    assert session.ranks[1]
    session.take(session.mux.on_rank_gone(1, "stopped"))
    assert session.client[-1]["event"] == "terminated"


def test_the_end_of_all_is_told_once_and_a_disconnect_still_answered(session: Session) -> None:
    for at in (0, 1):
        session.take(session.mux.on_rank_gone(at, "gone"))
        session.take(session.mux.on_rank_gone(at, "gone"))
    assert [one["event"] for one in session.client].count("terminated") == 1
    session.client.clear()
    session.ask("disconnect")
    assert session.said()["success"]


def test_nothing_that_an_editor_says_ends_a_process(session: Session) -> None:
    session.ask("disconnect", terminateDebuggee=True)
    session.ask("terminate")
    for rank in session.ranks.values():
        assert [one["command"] for one in rank] == ["disconnect"] * 2
        assert all(one["arguments"] == {"terminateDebuggee": False} for one in rank)


def test_what_is_no_request_and_what_is_not_known_is_harmless(session: Session) -> None:
    session.take(session.mux.on_request({"type": "response", "seq": 1}))
    session.ask("stackTrace", threadId="x")
    session.ask("variables")
    assert [one["message"] for one in session.client] == [GONE] * 2
    session.client.clear()
    session.take(
        session.mux.on_rank_message(0, {"type": "response", "request_seq": 99, "success": True})
    )
    session.tell(0, "debugpySockets")
    assert session.client == []


MESSAGES = st.dictionaries(st.text(max_size=5), st.text(max_size=9) | st.integers(), max_size=3)


@given(st.lists(MESSAGES, max_size=4), st.integers(1, 7))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[Message], size: int
) -> None:
    data = b"".join(map(packed, messages))
    unpacker = Unpacker()
    found = [one for at in range(0, len(data), size) for one in unpacker.feed(data[at : at + size])]
    assert found == messages


@pytest.mark.parametrize(
    "data",
    [
        b"Content-Length: x\r\n\r\n{}",
        b"Content-Length: 2\r\n\r\n[]",
        b"Content-Length: 2\r\n\r\n{{",
        b"Content-Length: 99999999999\r\n\r\n",
        b"x" * 9000,
    ],
)
def test_what_is_no_stream_of_messages_is_said(data: bytes) -> None:
    with pytest.raises(DapError):
        Unpacker().feed(data)
