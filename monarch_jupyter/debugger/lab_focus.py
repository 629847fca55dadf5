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
        self.steps = False  # the one that is shown runs, and is expected back
        self._waiting: dict[int, Message] = {}

    def stopped(self, event: Message) -> list[Message]:
        """A thread stands still."""
        thread = int(event["body"]["threadId"])
        if self.shown is None or self.shown == thread:
            self.shown, self.steps = thread, False
            return [event]
        self._waiting[thread] = event
        return []

    def stepped(self) -> None:
        """The one that is shown goes on, and is to stop again soon."""
        self.steps = self.shown is not None

    def continued(self, event: Message) -> list[Message]:
        """A thread goes on."""
        thread = int(event["body"]["threadId"])
        self._waiting.pop(thread, None)
        if thread != self.shown:
            return []
        return [event] if self.steps else [event, *self._next()]

    def gone(self, thread: int) -> list[Message]:
        """A thread has ended."""
        self._waiting.pop(thread, None)
        return self._next() if thread == self.shown else []

    def overdue(self) -> list[Message]:
        """A step has taken long enough: who waits is shown meanwhile."""
        return self._next() if self.steps and self._waiting else []

    def _next(self) -> list[Message]:
        self.shown, self.steps = None, False
        if not self._waiting:
            return []
        return self.stopped(self._waiting.pop(next(iter(self._waiting))))
