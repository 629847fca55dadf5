"""Which thread JupyterLab's debugger shows: one at a time, each in its turn."""

from __future__ import annotations

from typing import Any

from monarch_jupyter.debugger.lab import Focus


def stop(thread: int) -> dict[str, Any]:
    return {"event": "stopped", "body": {"threadId": thread}}


def go(thread: int) -> dict[str, Any]:
    return {"event": "continued", "body": {"threadId": thread}}


def test_the_next_one_is_shown_when_the_first_goes_on() -> None:
    focus = Focus()
    assert focus.on_stopped(stop(1)) == [stop(1)]
    assert focus.on_stopped(stop(2)) == []
    assert focus.on_stopped(stop(3)) == []
    assert focus.on_continued(go(1)) == [go(1), stop(2)]
    assert focus.on_continued(go(3)) == []  # it was never shown
    assert focus.on_continued(go(2)) == [go(2)]
    assert focus.shown is None


def test_who_steps_keeps_its_place_until_it_takes_too_long() -> None:
    focus = Focus()
    focus.on_stopped(stop(1))
    focus.on_stopped(stop(2))
    focus.on_step()
    assert focus.on_continued(go(1)) == [go(1)]
    assert focus.on_stopped(stop(1)) == [stop(1)]
    focus.on_step()
    focus.on_continued(go(1))
    assert focus.on_step_timeout() == [stop(2)]
    assert focus.on_stopped(stop(1)) == []
    assert focus.on_step_timeout() == []
    assert focus.on_continued(go(2)) == [go(2), stop(1)]


def test_a_thread_that_ends_gives_its_place_away() -> None:
    focus = Focus()
    focus.on_stopped(stop(1))
    focus.on_stopped(stop(2))
    focus.on_stopped(stop(3))
    assert focus.on_thread_exit(2) == []
    assert focus.on_thread_exit(1) == [stop(3)]
    assert focus.on_thread_exit(3) == []
    assert focus.shown is None
