"""Functions to call after a delay, unless they are cancelled.

Runs in: any process, on one daemon thread, which runs while a deadline is pending.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from time import monotonic

log = logging.getLogger("monarch.actor")


class Deadlines:
    """The pending deadlines of one process. Any thread may add and cancel."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}
        self._runs = False

    def __len__(self) -> int:
        return len(self._due)

    def add(self, after_s: float, call: Callable[[], None]) -> int:
        """Call a function after that many seconds, on the deadline thread; returns a number."""
        with self._changed:
            number = next(self._numbers)
            self._due[number] = monotonic() + after_s, call
            if self._runs:
                self._changed.notify()
            else:
                self._runs = True
                threading.Thread(target=self._run, name="deadlines", daemon=True).start()
        return number

    def cancel(self, number: int) -> None:
        """Cancel a deadline, unless its function has begun. Idempotent."""
        with self._changed:
            if self._due.pop(number, None) is not None and not self._due:
                self._changed.notify()

    def close(self) -> None:
        """Cancel all deadlines."""
        with self._changed:
            self._due.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                log.exception("the function of a deadline failed")

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next due function; None if no deadline is left, and the thread ends."""
        with self._changed:
            while self._due:
                number = min(self._due, key=lambda one: self._due[one][0])
                at, call = self._due[number]
                left = at - monotonic()
                if left <= 0:
                    del self._due[number]
                    return call
                self._changed.wait(left)
            self._runs = False
            return None
