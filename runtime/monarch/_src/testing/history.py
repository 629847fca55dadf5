"""Record injected faults in this process and emit them on the event bus."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence

from monarch._src.events import FaultInjected, bus

MOST = 100_000
_numbers = itertools.count(1)
_history: deque[FaultInjected] = deque(maxlen=MOST)


def injected(kind: str, mesh: str, ranks: Sequence[int], detail: str) -> int:
    """Record that a fault begins; return its number."""
    number = next(_numbers)
    _note(FaultInjected(number, time.time(), kind, mesh, tuple(ranks), detail))
    return number


def lifted(number: int, kind: str, mesh: str, ranks: Sequence[int], detail: str) -> None:
    """Record that a fault has ended."""
    _note(FaultInjected(number, time.time(), kind, mesh, tuple(ranks), detail, True))


def _note(event: FaultInjected) -> None:
    _history.append(event)
    bus.emit(event)


def history() -> tuple[FaultInjected, ...]:
    """Every fault that this process has injected or lifted, oldest first; the last 100,000."""
    return tuple(_history)


def forget_history() -> None:
    """Clear the history."""
    _history.clear()
