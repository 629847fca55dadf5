"""Notices about failed calls whose futures were dropped unread, in the cells that called.

Runs in: the kernel, on a thread of its own; the runtime reports from any thread, possibly inside a
garbage collection. Calls of one cell that fail in the same way within `HOLD` seconds are one
notice. Owns: that thread, from `start` until `close`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from monarch import frontend, observe
from monarch.observe import UnreadError
from monarch_jupyter.rendering.failures import headline

HOLD = 0.2
"""Seconds that a notice waits for more errors of its kind."""
CLOSE_TIMEOUT = 5.0

_Item = UnreadError | threading.Event | None


class UnreadErrors:
    """Reports each group of failed calls once."""

    def __init__(self, say: Callable[[str, int], None]) -> None:
        """`say` writes a line into the cell of that number."""
        self._say = say
        # Its `put` is safe inside a `__del__` method. An event is set when all before it is said.
        self._found: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="monarch-unread", daemon=True)

    def start(self) -> None:
        """Report from now on."""
        self._thread.start()
        observe.on_unread_error(self._found.put)

    def flush(self) -> None:
        """Return when all that was found is said."""
        said = threading.Event()
        self._found.put(said)
        if self._thread.is_alive():
            said.wait(CLOSE_TIMEOUT)

    def close(self) -> None:
        """End the thread. Idempotent."""
        observe.on_unread_error(None)
        self._found.put(None)
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        while True:
            errors, then = self._next_batch()
            self._report(errors)
            if then is None:
                return
            then.set()

    def _next_batch(self) -> tuple[list[UnreadError], threading.Event | None]:
        """The errors of the next `HOLD` seconds, and the event to set then; None: the end."""
        errors: list[UnreadError] = []
        item = self._found.get()
        until = time.monotonic() + HOLD
        while isinstance(item, UnreadError):
            errors.append(item)
            try:
                item = self._found.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return errors, threading.Event()
        return errors, item

    def _report(self, errors: Sequence[UnreadError]) -> None:
        kinds: dict[tuple[object, ...], list[UnreadError]] = {}
        for error in errors:
            what = error.failures[0].place if error.failures else error.text
            kinds.setdefault((error.origin, what), []).append(error)
        for alike in kinds.values():
            self._say(unread_text(alike), alike[0].origin)


def unread_text(errors: Sequence[UnreadError]) -> str:
    """The notice about calls that failed in the same way, on one line."""
    first = errors[0]
    groups = frontend.failures_by_place(first.failures)
    lines = [line for group in groups for line in headline(group)] or [first.text]
    said = "; ".join(" ".join(line.split()) for line in lines)
    more = len(errors) - 1
    calls = f", as {more} more call{'s' * (more > 1)} did" if more else ""
    of = "" if first.text else " of the call"
    return (
        f"monarch: {said}{calls}. Nothing has read this error: the future{of} was dropped without "
        ".get() or await"
    )
