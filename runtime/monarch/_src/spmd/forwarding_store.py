"""A base for stores of `torch.distributed` that stand in front of another one.

Runs in: a rank, on threads that make process groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from monarch._src.spmd.torch_modules import torch_distributed


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
