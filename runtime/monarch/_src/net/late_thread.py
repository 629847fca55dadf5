"""A thread that its starter does not wait for.

`threading.Thread.start` returns when the new thread has run: two switches of the processor, of
which a process that has just been forked, among others that were, pays more than for the thread.
This one is started as `_thread` starts it. `threading`, and who asks that which threads there are,
hears of it when it introduces itself.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from typing import Any, cast


class LateThread:
    """Calls `run`, which is to `introduce` it, on a thread of its own. A daemon."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self.name = name
        self.ident: int | None = None
        self._run = run
        self._running = allocate_lock()

    def start(self) -> None:
        """Start it. Once."""
        self._running.acquire()
        try:
            self.ident = start_new_thread(self._main, ())
        except BaseException:
            self._running.release()
            raise

    def introduce(self) -> None:
        """Be known by name from here on. On that thread."""
        threading.current_thread().name = self.name

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._running.locked()

    def join(self) -> None:
        """Wait for its end."""
        self._running.acquire()
        self._running.release()

    def _main(self) -> None:
        try:
            self._run()
        finally:
            # `threading` would forget it later, or before Python 3.12 never.
            known = cast("dict[int, Any]", threading._active)  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]
            known.pop(get_ident(), None)
            self._running.release()
