"""Calls that are to be made at a time, unless they are cancelled before.

Runs in: any process; one daemon thread, which lives while a call is due.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from time import monotonic

log = logging.getLogger("monarch.actor")


class Deadlines:
    """Those of one process. Any thread may add and cancel; a cancelled one leaves nothing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}
        self._runs = False

    def __len__(self) -> int:
        return len(self._due)

    def add(self, after_s: float, call: Callable[[], None]) -> int:
        """Have that called so many seconds from now, on a thread of this; its number."""
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
        """It is not called any more, unless that is under way. Idempotent."""
        with self._changed:
            if self._due.pop(number, None) is not None and not self._due:
                self._changed.notify()

    def close(self) -> None:
        """Cancel all."""
        with self._changed:
            self._due.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                log.exception("what was to be done at a deadline failed")

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next that is due; None if there is none left, and the thread ends."""
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
