"""Notices about failures that no supervisor handles.

Runs in: the kernel; the runtime calls the hook on a thread made for that call, which may wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from monarch.actor import MeshFailure, RankFailure
from monarch.observe import failures_by_place
from monarch_jupyter.cells.advice import advice
from monarch_jupyter.errors import one_line
from monarch_jupyter.rendering.failures import headline

PATIENCE = 0.5
"""Seconds that a notice waits for a cell to raise the same failure, which then needs no notice."""

_Identity = tuple[object, ...]


class FaultNotices:
    """Replaces `monarch.actor.unhandled_fault_hook`, so that the kernel lives on.

    Each failure is reported once, by a cell's error or else by a notice. The runtime lets every
    later call that includes the failed ranks raise.
    """

    def __init__(self, say: Callable[[str], None], names: Mapping[str, object]) -> None:
        """`names`: the notebook's variables, for advice."""
        self._say = say
        self._names = names
        self._lock = threading.Lock()
        # Guarded by _lock: failures that were reported, and failures that may yet be a cell's
        # error.
        self._reported: set[_Identity] = set()
        self._waiting: dict[_Identity, RankFailure] = {}

    def __call__(self, failure: MeshFailure) -> None:
        with self._lock:
            new = {_identity(one): one for one in failure.failures}
            new = {key: one for key, one in new.items() if key not in self._reported}
            self._waiting.update(new)
        threading.Event().wait(PATIENCE)
        self._report(new)

    def mark_shown(self, failures: Iterable[RankFailure]) -> None:
        """Record that a cell shows these failures, so that they need no notice."""
        with self._lock:
            for failure in failures:
                self._reported.add(_identity(failure))
                self._waiting.pop(_identity(failure), None)

    def report_waiting(self) -> None:
        """Report the waiting failures in the cell that has just ended without raising them."""
        with self._lock:
            waiting = list(self._waiting)
        self._report(waiting)

    def _report(self, identities: Iterable[_Identity]) -> None:
        with self._lock:
            found = [self._waiting.pop(key) for key in identities if key in self._waiting]
            self._reported.update(_identity(one) for one in found)
        for groups in failures_by_place(found):
            text = "; ".join(line.strip() for line in headline(groups))
            remedy = one_line(advice([one for group in groups for one in group], self._names))
            self._say(f"monarch: {text}{f'; {remedy}' if remedy else ''}")


def _identity(failure: RankFailure) -> _Identity:
    return (failure.mesh_name, failure.rank, failure.pid, *failure.story)
