"""The kernel's one publisher, made when first asked for."""

from __future__ import annotations

import threading

from monarch import observe
from monarch_jupyter.publisher import Publisher

_lock = threading.Lock()
_publisher: Publisher | None = None


def shared_publisher() -> Publisher:
    """The publisher that every explorer and the panel listen to."""
    global _publisher
    with _lock:
        if _publisher is None:
            _publisher = Publisher(observe.snapshot)
        return _publisher


def close_publisher() -> None:
    """End it; the next `shared_publisher` makes a new one. Idempotent."""
    global _publisher
    with _lock:
        publisher, _publisher = _publisher, None
    if publisher is not None:
        publisher.close()
