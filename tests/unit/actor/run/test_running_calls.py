"""A cancellation that crosses the beginning of its call is noticed by one of the two threads.

The other thread's steps are run inside this one's, at each place where they can come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from monarch._src.actor.parts import Debugger
from monarch._src.actor.run.running_calls import RunningCalls
from monarch._src.errors import CallCancelled
from monarch._src.wire.frames import NO_PAYLOAD
from monarch._src.wire.messages import Call

CALLER = "client"


class CallsThatAreWatched(dict[int, Any]):
    """Calls `between` once, after its entries were listed and before their reader goes on."""

    between: Callable[[], None] | None = None

    def values(self) -> Any:
        listed: Iterator[Any] = iter(list(super().values()))
        then, self.between = self.between, None
        if then is not None:
            then()
        return listed


class FakeCell:
    """An actor whose mailbox is empty, since its thread has taken the call."""

    def __init__(self) -> None:
        self.dead = None
        self.endpoints = None
        self.mailbox = self
        self.runtime = self
        self.hooks = self
        self.debugger = Debugger()
        self.instance = self.waiting = self.node = self.leader = self
        self.waits: dict[int, Any] = {}
        self.work: Call | None = None
        self.raised: list[Call] = []
        self.before_raise: Callable[[], None] = lambda: None

    def withdraw(self, _caller: str, _number: int) -> None:
        return None

    def wake_all(self) -> None:
        """Wake nobody."""

    def raise_in(self, call: Call) -> bool:
        self.before_raise()
        if self.work is not call:
            return False
        self.raised.append(call)
        return True


class Worker:
    """The steps of the actor's thread for one call."""

    def __init__(self) -> None:
        self.cell = FakeCell()
        self.running = RunningCalls(cast("Any", self.cell))
        self.running.calls = CallsThatAreWatched()
        self.call = Call(1, 7, "step", 0, [], [])
        self.answered: list[str] = []
        self.running._answer_cancelled = lambda _peer, call: self.answered.append(call.endpoint)  # type: ignore[method-assign] # pyright: ignore[reportPrivateUsage]
        self.ended = ""

    def accept(self) -> bool:
        return self.running.accept(CALLER, self.call, NO_PAYLOAD, 0)

    def begin(self) -> None:
        """Let others raise in the call, and look for a mark."""
        self.cell.work = self.call
        try:
            self.running.raise_if_cancelled(self.call)
        except CallCancelled:
            self.ended = "by itself"

    def accept_and_begin(self) -> None:
        if self.accept():
            self.begin()

    @property
    def outcomes(self) -> list[str]:
        """Everything that has ended the call."""
        found = ["answered"] * len(self.answered) + ["raised in"] * len(self.cell.raised)
        return [*found, self.ended] if self.ended else found


def test_a_call_that_is_accepted_while_it_is_looked_for_is_answered_as_cancelled() -> None:
    worker = Worker()
    cast("CallsThatAreWatched", worker.running.calls).between = worker.accept_and_begin
    worker.running.cancel(CALLER, 7)
    assert worker.outcomes == ["answered"]
    assert not worker.running.calls
    assert not worker.running.cancelled_early


def test_a_call_that_is_cancelled_before_it_is_accepted_is_answered_as_cancelled() -> None:
    worker = Worker()
    worker.running.cancel(CALLER, 7)
    worker.accept_and_begin()
    assert worker.outcomes == ["answered"]


def test_a_call_that_has_been_accepted_and_has_not_begun_ends_when_it_begins() -> None:
    worker = Worker()
    assert worker.accept()
    worker.running.cancel(CALLER, 7)
    worker.begin()
    assert worker.outcomes == ["by itself"]


def test_a_call_that_begins_while_it_is_marked_ends() -> None:
    worker = Worker()
    assert worker.accept()
    worker.cell.before_raise = worker.begin
    worker.running.cancel(CALLER, 7)
    assert worker.outcomes == ["raised in", "by itself"]  # it is one exception or the other


def test_a_running_call_is_raised_in() -> None:
    worker = Worker()
    worker.accept_and_begin()
    worker.running.cancel(CALLER, 7)
    assert worker.outcomes == ["raised in"]


@pytest.mark.parametrize("caller", [CALLER, "another"])
def test_a_call_that_has_ended_leaves_no_mark(caller: str) -> None:
    worker = Worker()
    worker.accept_and_begin()

    def end() -> None:
        worker.cell.work = None
        worker.running.calls.clear()

    worker.cell.before_raise = end
    worker.running.cancel(caller, 7)
    assert worker.outcomes == []
    assert not worker.running.cancelled
