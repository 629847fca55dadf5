"""Stores of `torch.distributed` that stand in front of another one, such as one that can be ended.

Torch's own stores wait in C++, until their time-out, for a rank that may have died before it came.
The one of `abortable` asks whether the keys are there, and sleeps in between, until the process
groups of this rank are ended.

Runs in: a rank, on threads that make process groups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from monarch._src.spmd.collective_errors import StoreEndedError
from monarch._src.spmd.torch_modules import torch_distributed

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02


def forwarding_store() -> type[Any]:
    """The class, whose instances hand each request to the store `inner`.

    Made when it is needed, since its base is torch's.
    """
    base: Any = torch_distributed().Store

    class ForwardingStore(base):
        """See `forwarding_store`."""

        def __init__(self, inner: Any) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.inner = inner

        @property
        def timeout(self) -> timedelta:
            """How long waits may take."""
            return self.inner.timeout

        def set(self, key: str, value: Any) -> None:
            self.inner.set(key, value)

        def get(self, key: str) -> Any:
            return self.inner.get(key)

        def add(self, key: str, value: int) -> int:
            return self.inner.add(key, value)

        def compare_set(self, key: str, expected: Any, desired: Any) -> Any:
            return self.inner.compare_set(key, expected, desired)

        def delete_key(self, key: str) -> bool:
            return self.inner.delete_key(key)

        def num_keys(self) -> int:
            return self.inner.num_keys()

        def check(self, keys: Sequence[str]) -> bool:
            return self.inner.check(list(keys))

        def set_timeout(self, timeout: timedelta) -> None:
            self.inner.set_timeout(timeout)

        def wait(self, keys: Sequence[str], limit: timedelta | None = None) -> None:
            self.inner.wait(list(keys), *(() if limit is None else (limit,)))

    return ForwardingStore


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
