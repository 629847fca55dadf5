"""Notices about failures that no supervisor handles.

Runs in: the kernel; the runtime calls the hook on a thread made for that call, which may wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from monarch.actor import MeshFailure, RankFailure
from monarch.frontend import failures_by_place
from monarch_jupyter.cells.advice import advice
from monarch_jupyter.rendering.failures import headline

PATIENCE = 0.5
"""Seconds that a notice waits after the last failure: for those of other ranks, which it tells too,
and for a cell to raise the same failure, which then needs no notice."""
LONGEST = 5.0
"""Seconds after which it waits no more, though further ranks fail."""

_Identity = tuple[object, ...]


class FaultNotices:
    """Replaces `monarch.actor.unhandled_fault_hook`, so that the kernel lives on.

    Each failure is reported once, by a cell's error or else by a notice. The runtime lets every
    later call that includes the failed ranks raise.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        names: Mapping[str, object],
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """`names`: the notebook's variables, for advice. `wait`: sleeps for some seconds."""
        self._say = say
        self._wait = wait
        self._names = names
        self._lock = threading.Lock()
        # Guarded by _lock: failures that were reported, and failures that may yet be a cell's
        # error.
        self._reported: set[_Identity] = set()
        self._waiting: dict[_Identity, RankFailure] = {}
        self._arrived = 0.0  # when the last one came
        self._is_collecting = False

    def __call__(self, failure: MeshFailure) -> None:
        with self._lock:
            new = {_identity(one): one for one in failure.failures}
            new = {key: one for key, one in new.items() if key not in self._reported}
            if not new:
                return
            self._waiting.update(new)
            self._arrived = time.monotonic()
            if self._is_collecting:
                return  # the call that collects reports these too
            self._is_collecting = True
        self._report(self._collect())

    def mark_shown(self, failures: Iterable[RankFailure]) -> None:
        """Record that a cell shows these failures, so that they need no notice."""
        with self._lock:
            for failure in failures:
                self._reported.add(_identity(failure))
                self._waiting.pop(_identity(failure), None)

    def report_waiting(self) -> None:
        """Report the waiting failures in the cell that has just ended without raising them."""
        with self._lock:
            if not self._waiting:
                return
        self._report(self._collect())

    def _collect(self) -> list[RankFailure]:
        """Wait until no further rank fails; take all failures that wait."""
        until = time.monotonic() + LONGEST
        while True:
            with self._lock:
                left = min(self._arrived + PATIENCE, until) - time.monotonic()
                if left <= 0:
                    found = list(self._waiting.values())
                    self._reported.update(self._waiting)
                    self._waiting.clear()
                    self._is_collecting = False
                    return found
            self._wait(left)

    def _report(self, found: Sequence[RankFailure]) -> None:
        for groups in failures_by_place(found):
            text = "; ".join(line.strip() for line in headline(groups))
            remedy = _in_one_line(advice([one for group in groups for one in group], self._names))
            self._say(f"monarch: {text}{f'; {remedy}' if remedy else ''}")


def _in_one_line(advice: str) -> str:
    """Advice with its magics in the text."""
    text = ""
    for line in advice.splitlines():
        is_magic = line.startswith("%")
        between = "" if not text else ", " if is_magic and text.endswith("`") else " "
        if not is_magic and text.endswith("`"):
            between = ". "
        text += between + (f"`{line}`" if is_magic else line)
    return text


def _identity(failure: RankFailure) -> _Identity:
    return (failure.mesh_name, failure.rank, failure.pid, *failure.story)
