"""Holds back answers until the output that ranks wrote before them is shown.

Runs in: a client that shows output. An answer carries a flag (`WROTE`) if its rank has written
output. Its future then waits here until the host agents have read their pipes and sent the lines,
and the front end has shown them. Answers that arrive meanwhile wait too, since they may depend on
those lines. One request is under way at a time; the next one covers all answers since.
Owns: a thread that releases answers after `BOUND_S` seconds in any case. From then until the agents
have answered, answers do not wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from time import monotonic
from typing import TypeAlias

log = logging.getLogger("monarch.actor")
BOUND_S = 1.0  # how long an answer waits for output at most
Show: TypeAlias = "Callable[[Callable[[], None]], None]"
FRONT_ENDS: list[Show] = []
"""`show(done)` shows all lines that it has received, then calls `done`, on any thread."""


class OutputBarrier:
    """The answers that wait for output. Any thread."""

    def __init__(self, flush: Callable[[Collection[int] | None, Callable[[], None]], None]) -> None:
        """`flush`: makes the agents of these meshes (None: all) send output, then calls back."""
        self._flush = flush
        self._changed = threading.Condition()
        # Whether answers wait; read without the lock.
        self.is_shut = False
        self._next: list[Callable[[], None]] = []
        self._meshes: set[int] = set()
        self._everywhere = False
        # The request under way: its number, the answers that wait for it, and their deadline.
        self._number = 0
        self._waiting: list[Callable[[], None]] = []
        self._deadline: float | None = None
        self._is_late = False  # the agents have missed the deadline and not answered since
        self._thread: threading.Thread | None = None
        self._is_idle = False
        self._closed = False

    def note(self, mesh: int, *, everywhere: bool) -> None:
        """Ranks of that mesh, or of any mesh, have written output before an answer."""
        with self._changed:
            self._meshes.add(mesh)
            self._everywhere = self._everywhere or everywhere

    def after(self, give_out: Callable[[], None]) -> None:
        """Call `give_out` once the earlier output is shown."""
        with self._changed:
            if not (self._is_late or self._closed):
                self._next.append(give_out)
                if self.is_shut:
                    return
                self.is_shut = True
                give_out = self._request_flush
        give_out()

    def _request_flush(self) -> None:
        with self._changed:
            self._number += 1
            number = self._number
            self._waiting, self._next = self._next, []
            meshes = None if self._everywhere or not self._meshes else self._meshes
            self._meshes, self._everywhere = set(), False
            self._deadline = monotonic() + BOUND_S
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="monarch-io-output", daemon=True
                )
                self._thread.start()
            elif self._is_idle:
                self._changed.notify()
        self._flush(meshes, lambda: self._flushed(number))

    def _flushed(self, number: int) -> None:
        """The agents have sent their output, and it has arrived."""
        with self._changed:
            self._is_late = False
            if number != self._number or self._deadline is None:
                return  # its answers have been released
            shows = [*FRONT_ENDS]
            left = len(shows)
        if not left:
            self._shown(number)
            return

        def done() -> None:
            nonlocal left
            with self._changed:
                left -= 1
                if left:
                    return
            self._shown(number)

        for show in shows:
            show(done)

    def _shown(self, number: int) -> None:
        with self._changed:
            if number != self._number or self._deadline is None:
                return
            self._deadline = None
            waiting, self._waiting = self._waiting, []
        _give_out(waiting)
        with self._changed:
            if not self._next:  # no answer has arrived meanwhile
                self.is_shut = False
                return
        self._request_flush()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (self._deadline is None or self._deadline > monotonic()):
                    left = None if self._deadline is None else self._deadline - monotonic()
                    self._is_idle = left is None
                    self._changed.wait(left)
                self._is_idle = False
                if self._closed:
                    return
                self._is_late, self._deadline = True, None
                waiting = self._waiting + self._next
                self._waiting, self._next = [], []
                self.is_shut = False
            log.debug("answers are released before earlier output, which did not arrive in time")
            _give_out(waiting)

    def close(self) -> None:
        """Release all answers and end the thread. Idempotent."""
        with self._changed:
            self._closed, self._deadline = True, None
            waiting = self._waiting + self._next
            self._waiting, self._next = [], []
            self.is_shut = False
            self._changed.notify()
            thread, self._thread = self._thread, None
        _give_out(waiting)
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _give_out(waiting: list[Callable[[], None]]) -> None:
    for give_out in waiting:
        try:
            give_out()
        except Exception:
            log.exception("releasing an answer failed")
