"""The recent usage of ranks, for all views of this kernel.

The publisher's polls fill it, so it costs nothing while no view is shown. Any thread may read it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch_jupyter.protocol.usage import UsageHistory, UsageMessage

if TYPE_CHECKING:
    from monarch.observe import MeshSnapshot


class UsageRecorder:
    """A usage history between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._history = UsageHistory()

    def take(self, meshes: Sequence[MeshSnapshot]) -> None:
        """Add the figures of a poll."""
        with self._lock:
            self._history.add(meshes, self._clock())

    def message(self, uid: str, after: int) -> UsageMessage:
        """The samples of a mesh whose numbers are above `after`."""
        with self._lock:
            return self._history.message(uid, after, self._clock())


USAGE = UsageRecorder()
"""The recorder of this kernel."""
