"""Who debugs which rank: every transition, and what is owed to whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.debug.dap.state.bridges import (
    CLOSED_MEANWHILE,
    ENDED,
    Action,
    BridgeTable,
    Notify,
    SendToRank,
)
from monarch._src.wire.messages import (
    AskBridge,
    BridgeAnswered,
    BridgeBytes,
    BridgeClosed,
    BridgeSet,
    SetBridge,
)

PLACE = (7, 3)


@pytest.fixture
def table() -> Iterator[BridgeTable]:
    """A table whose invariants are looked at when the test has ended."""
    made = BridgeTable()
    yield made
    made.validate()


def ask(table: BridgeTable, opens: bool, who: str = "me", number: int = 1) -> list[Action]:
    return table.on_request(who, AskBridge(number, [PLACE], opens))


def opened(table: BridgeTable, who: str = "me") -> int:
    """A bridge that is open, and its number."""
    (order,) = ask(table, True, who)
    assert isinstance(order, SendToRank)
    assert isinstance(order.message, SetBridge)
    number = order.message.bridge
    assert table.on_bridge_set(PLACE, BridgeSet(number, True, "")) == [
        Notify(who, BridgeAnswered(1, *PLACE, number, ""))
    ]
    return number


def test_bytes_pass_between_the_two_and_nobody_else(table: BridgeTable) -> None:
    number = opened(table)
    said = BridgeBytes(*PLACE, number, b"x")
    assert table.on_console_bytes("me", said) == [SendToRank(PLACE, said)]
    assert table.on_console_bytes("other", said) == []
    assert table.on_console_bytes("me", BridgeBytes(*PLACE, number + 1, b"x")) == []
    assert table.on_rank_bytes(PLACE, BridgeBytes(0, 0, number, b"y")) == [
        Notify("me", BridgeBytes(*PLACE, number, b"y"))
    ]
    assert table.on_rank_bytes((7, 4), BridgeBytes(0, 0, number, b"y")) == []


def test_a_rank_has_one_bridge_at_a_time(table: BridgeTable) -> None:
    opened(table)
    (refused,) = ask(table, True, "other", 5)
    assert isinstance(refused, Notify)
    assert isinstance(refused.message, BridgeAnswered)
    assert refused.message.problem == "me debugs it already; close that bridge first"
    assert table.console_of(PLACE) == "me"


def test_who_asks_while_one_closes_gets_the_next(table: BridgeTable) -> None:
    number = opened(table)
    assert ask(table, False, number=2) == [SendToRank(PLACE, SetBridge(number, False))]
    assert ask(table, True, "other", 3) == []
    told = table.on_bridge_set(PLACE, BridgeSet(number, False, ""))
    assert told == [
        Notify("me", BridgeAnswered(2, *PLACE, 0, "")),
        SendToRank(PLACE, SetBridge(number + 1, True)),
    ]


def test_one_that_cannot_be_opened_says_why(table: BridgeTable) -> None:
    ask(table, True)
    (said,) = table.on_bridge_set(PLACE, BridgeSet(1, False, "no debugpy"))
    assert said == Notify("me", BridgeAnswered(1, *PLACE, 0, "no debugpy"))
    assert not table.bridges


def test_one_that_is_closed_before_it_is_open_answers_both(table: BridgeTable) -> None:
    ask(table, True)
    first, order = ask(table, False, number=2)
    assert first == Notify("me", BridgeAnswered(1, *PLACE, 0, CLOSED_MEANWHILE))
    assert order == SendToRank(PLACE, SetBridge(1, False))
    assert table.on_bridge_set(PLACE, BridgeSet(1, True, "")) == []
    assert len(table.on_bridge_set(PLACE, BridgeSet(1, False, ""))) == 1


def test_the_end_of_a_process_is_told_and_answered(table: BridgeTable) -> None:
    number = opened(table)
    assert table.on_proc_ended(PLACE) == [Notify("me", BridgeClosed(*PLACE, number, ENDED))]
    ask(table, True, number=4)
    assert table.on_proc_ended(PLACE) == [Notify("me", BridgeAnswered(4, *PLACE, 0, ENDED))]
    assert table.on_proc_ended(PLACE) == []


def test_a_console_that_is_gone_leaves_no_debugger_behind(table: BridgeTable) -> None:
    number = opened(table)
    assert table.on_console_gone("other") == []
    assert table.on_console_gone("me") == [SendToRank(PLACE, SetBridge(number, False))]
    assert table.on_bridge_set(PLACE, BridgeSet(number, False, "")) == []
    assert not table.bridges


def test_a_process_that_begins_later_is_told_then(table: BridgeTable) -> None:
    ask(table, True)
    assert table.on_proc_connected(PLACE) == [SendToRank(PLACE, SetBridge(1, True))]
    table.on_bridge_set(PLACE, BridgeSet(1, True, ""))
    assert table.on_proc_connected(PLACE) == []


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "set", "unset", "ended", "gone"]),
        st.sampled_from(["me", "other"]),
    ),
    max_size=25,
)


@given(EVENTS)
def test_every_question_is_answered_once_in_any_order_of_events(
    events: list[tuple[str, str]],
) -> None:
    table, owed = BridgeTable(), dict[int, str]()
    for number, (event, who) in enumerate(events, 1):
        bridge = table.bridges.get(PLACE)
        current = 0 if bridge is None else bridge.number
        if event in ("open", "close"):
            owed[number] = who
            actions = ask(table, event == "open", who, number)
        elif event in ("set", "unset"):
            actions = table.on_bridge_set(PLACE, BridgeSet(current, event == "set", ""))
        elif event == "ended":
            actions = table.on_proc_ended(PLACE)
        else:
            actions = table.on_console_gone(who)
            owed = {one: console for one, console in owed.items() if console != who}
        for action in actions:
            if isinstance(action, Notify) and isinstance(action.message, BridgeAnswered):
                assert owed.pop(action.message.request, action.console) == action.console
        table.validate()
    for action in table.on_proc_ended(PLACE):
        if isinstance(action, Notify) and isinstance(action.message, BridgeAnswered):
            owed.pop(action.message.request, None)
    assert not table.bridges
    assert not owed
