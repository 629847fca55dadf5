"""A store whose waits end when the process groups of this rank are ended.

Torch's own stores wait in C++, until their time-out, for a rank that may have died before it came.
This one asks them whether the keys are there, and sleeps in between.

Runs in: a rank, on threads that make process groups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from monarch._src.spmd.collective_errors import StoreEndedError
from monarch._src.spmd.forwarding_store import forwarding_store
from monarch._src.spmd.torch_modules import torch_distributed

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02


def abortable(inner: Any, ended: threading.Event, timeout: timedelta) -> Any:
    """A `torch.distributed.Store` over `inner`; at `ended` its waits raise StoreEndedError."""
    base: Any = forwarding_store()
    dist = torch_distributed()

    class AbortableStore(base):
        """See the module."""

        @property
        def timeout(self) -> timedelta:
            """How long waits may take."""
            return timeout

        def get(self, key: str) -> Any:
            self.wait([key])
            return inner.get(key)

        def set_timeout(self, _timeout: timedelta) -> None:
            """Ignored: that of the group stays."""

        def wait(self, keys: Sequence[str], limit: timedelta | None = None) -> None:
            deadline = time.monotonic() + (limit or timeout).total_seconds()
            pause_s = FIRST_PAUSE_S
            while not inner.check(list(keys)):
                if ended.wait(pause_s):
                    raise StoreEndedError("the process groups of this rank have ended")
                if time.monotonic() > deadline:
                    # Torch's own error, which its barrier at the store goes on after.
                    raise dist.DistStoreError(
                        f"no rank has set {', '.join(keys)} in {limit or timeout}"
                    )
                pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)

    return AbortableStore(inner)
