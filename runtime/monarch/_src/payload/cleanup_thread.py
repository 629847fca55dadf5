"""The thread that tidies segments and mappings; it runs while there are any.

Runs in: any process that sends or gets large payloads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from monarch._src.net.local.interrupt import uninterrupted

log = logging.getLogger("monarch.payload")
LOOK_S = 0.5


class Tidying:
    """Calls the given functions twice a second, until each reports that it has no more work."""

    def __init__(self, looks: Sequence[Callable[[float], bool]]) -> None:
        """`looks`: functions of the time; each returns True while it has more work."""
        self._looks = looks
        self._turn = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._closed = False

    def want(self) -> None:
        """Start the thread if necessary. Any thread."""
        self._wanted = True
        if self._thread is None:
            with uninterrupted(), self._turn:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(
                        target=self._run, name="monarch-segments", daemon=True
                    )
                    self._thread.start()

    def _run(self) -> None:
        more = True
        while True:
            with self._turn:
                if not self._closed and more:
                    self._turn.wait(LOOK_S)
                if self._closed or not (more or self._wanted):
                    own, self._thread = self._thread, None
                    if self._closed or not self._wanted:  # `want` sets this before it reads _thread
                        return
                    self._thread = own
                self._wanted = False
            more = False
            for look in self._looks:
                try:
                    more |= look(time.monotonic())
                except Exception:  # the other functions run all the same
                    log.exception("looking after segments failed")

    def close(self) -> None:
        """End the thread. Idempotent."""
        with uninterrupted(), self._turn:
            self._closed = True
            self._turn.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
