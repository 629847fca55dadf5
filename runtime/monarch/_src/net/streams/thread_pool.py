"""The threads that move bytes. They start when there is work, and end a second after the last task.

Runs in: any process that reads, writes or drops. An idle process has no such threads.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from monarch._src.net.local.interrupt import uninterrupted

log = logging.getLogger("monarch.net")
IDLE_S = 1.0
MOST = 16


class Pool:
    """Runs tasks on daemon threads, oldest first. Tasks must not raise."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._turn = threading.Condition(threading.Lock())
        self._tasks: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, task: Callable[[], None]) -> bool:
        """Run it soon; False if the pool is closed."""
        with uninterrupted(), self._turn:
            if self._closed:
                return False
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._turn.notify()
            elif len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name="monarch-data", daemon=True)
                self._threads.add(thread)
                thread.start()
        return True

    def _run(self) -> None:
        while True:
            with self._turn:
                while not self._tasks:
                    self._idle += 1
                    called = not self._closed and self._turn.wait(IDLE_S)
                    self._idle -= 1
                    if not self._tasks and (self._closed or not called):
                        self._threads.discard(threading.current_thread())
                        return
                task = self._tasks.popleft()
            try:
                task()
            except Exception:
                log.exception("a task of the data plane raised")
            del task  # it refers to memory of users

    def close(self) -> None:
        """Finish what was submitted and end the threads. Idempotent."""
        with uninterrupted(), self._turn:
            self._closed = True
            self._turn.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
