"""What the notebook does about a failure that nobody handles.

Runs in: the kernel; the hook is called on whichever thread the runtime learns of the failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from monarch.actor import MeshFailure, RankFailure
from monarch_jupyter.rendering.failures import fold_failures, headline


class FaultNotices:
    """Takes the place of `monarch.actor.unhandled_fault_hook`: says each failure once, and lets
    the kernel live.

    Every later call that touches the failed ranks raises; that is the runtime's doing.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._said: set[tuple[object, ...]] = set()

    def __call__(self, failure: MeshFailure) -> None:
        with self._lock:
            news = [one for one in failure.failures if _identity(one) not in self._said]
            self._said.update(_identity(one) for one in news)
        for group in fold_failures(news):
            told = "; ".join(headline(group))
            self._say(
                f"monarch: {told}. Calls that include it raise; the rest of the mesh works on."
            )
        if not failure.failures:
            self._say(f"monarch: {failure}")


def _identity(failure: RankFailure) -> tuple[object, ...]:
    return (failure.mesh_name, failure.rank, failure.pid, *failure.story)
