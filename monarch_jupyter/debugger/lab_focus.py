"""Chooses the paused thread that JupyterLab's debugger shows: one at a time. No I/O.

Invariants: a thread is shown until it resumes; then the thread that has waited longest is next;
each is announced once, by its own stop event.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Message: TypeAlias = "dict[str, Any]"


class Focus:
    """The shown thread and the waiting ones. Methods return the events to publish."""

    def __init__(self) -> None:
        self.shown: int | None = None
        self.is_stepping = False  # the shown thread runs a step and will stop again
        self._waiting: dict[int, Message] = {}

    def on_stopped(self, event: Message) -> list[Message]:
        """A thread has stopped."""
        thread = int(event["body"]["threadId"])
        if self.shown is None or self.shown == thread:
            self.shown, self.is_stepping = thread, False
            return [event]
        self._waiting[thread] = event
        return []

    def on_step(self) -> None:
        """The shown thread runs a step and will stop again soon."""
        self.is_stepping = self.shown is not None

    def on_continued(self, event: Message) -> list[Message]:
        """A thread has resumed."""
        thread = int(event["body"]["threadId"])
        self._waiting.pop(thread, None)
        if thread != self.shown:
            return []
        return [event] if self.is_stepping else [event, *self._next()]

    def on_thread_exit(self, thread: int) -> list[Message]:
        """A thread has ended."""
        self._waiting.pop(thread, None)
        return self._next() if thread == self.shown else []

    def on_step_timeout(self) -> list[Message]:
        """A step takes long: show a waiting thread meanwhile."""
        return self._next() if self.is_stepping and self._waiting else []

    def _next(self) -> list[Message]:
        self.shown, self.is_stepping = None, False
        if not self._waiting:
            return []
        return self.on_stopped(self._waiting.pop(next(iter(self._waiting))))
