"""Which thread JupyterLab's debugger shows, of those that stand still: one at a time. No I/O.

Invariants: a thread that is shown stays until it goes on; then the one that has waited longest is
next; each is announced by the event of its own stop, once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Message: TypeAlias = "dict[str, Any]"


class Focus:
    """The thread that is shown, and those that wait for their turn. Returns what to publish."""

    def __init__(self) -> None:
        self.shown: int | None = None
        self.is_stepping = False  # the one that is shown runs, and is expected back
        self._waiting: dict[int, Message] = {}

    def on_stopped(self, event: Message) -> list[Message]:
        """A thread stands still."""
        thread = int(event["body"]["threadId"])
        if self.shown is None or self.shown == thread:
            self.shown, self.is_stepping = thread, False
            return [event]
        self._waiting[thread] = event
        return []

    def on_step(self) -> None:
        """The one that is shown goes on, and is to stop again soon."""
        self.is_stepping = self.shown is not None

    def on_continued(self, event: Message) -> list[Message]:
        """A thread goes on."""
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
        """A step has taken long enough: who waits is shown meanwhile."""
        return self._next() if self.is_stepping and self._waiting else []

    def _next(self) -> list[Message]:
        self.shown, self.is_stepping = None, False
        if not self._waiting:
            return []
        return self.on_stopped(self._waiting.pop(next(iter(self._waiting))))
