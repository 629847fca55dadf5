"""Joins of one process take turns, and one that was left to its thread holds up none."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from monarch._src.spmd import gloo_sockets
from monarch._src.spmd.member import JoinTurn

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _no_abandoned_threads() -> Iterator[None]:
    yield
    gloo_sockets.abandoned.clear()


class Join:
    """A join on a thread of its own, which ends when `finish` is called."""

    def __init__(self, turn: JoinTurn) -> None:
        self.has_turn, self._may_end = threading.Event(), threading.Event()
        self.raised: BaseException | None = None
        self._turn = turn
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._turn.take()
        except RuntimeError as error:
            self.raised = error
            return
        self.has_turn.set()
        self._may_end.wait(PATIENCE_S)
        self._turn.end()

    def finish(self) -> None:
        self._may_end.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


def test_a_second_join_waits_for_the_first() -> None:
    turn = JoinTurn()
    first = Join(turn)
    assert first.has_turn.wait(PATIENCE_S)
    assert not turn.take(wait=False)
    assert not turn.wait_free(0)
    second = Join(turn)
    assert not second.has_turn.is_set()
    first.finish()
    assert second.has_turn.wait(PATIENCE_S)
    second.finish()
    assert turn.wait_free(0)


def test_a_join_that_is_left_to_its_thread_wakes_what_waits_for_its_end() -> None:
    turn = JoinTurn()
    left = Join(turn)
    assert left.has_turn.wait(PATIENCE_S)
    seen: list[bool] = []
    waiting = threading.Thread(target=lambda: seen.append(turn.wait_free(PATIENCE_S)))
    waiting.start()
    assert left.thread.ident is not None
    turn.leave_to_thread(left.thread.ident)
    waiting.join(PATIENCE_S)
    assert seen == [True]
    following = Join(turn)
    assert following.has_turn.wait(PATIENCE_S)
    left.finish()  # its end does not take the turn away
    assert not turn.wait_free(0)
    following.finish()


def test_a_join_that_is_left_before_its_turn_never_begins() -> None:
    turn = JoinTurn()
    first = Join(turn)
    assert first.has_turn.wait(PATIENCE_S)
    second = Join(turn)
    assert second.thread.ident is not None
    turn.leave_to_thread(second.thread.ident)
    second.thread.join(PATIENCE_S)
    assert "has not waited" in str(second.raised)
    first.finish()
