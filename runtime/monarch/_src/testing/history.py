"""What was injected, and when: kept in this process, and told on the bus."""

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
    """Note that a fault begins; its number."""
    number = next(_numbers)
    _note(FaultInjected(number, time.time(), kind, mesh, tuple(ranks), detail))
    return number


def lifted(number: int, kind: str, mesh: str, ranks: Sequence[int], detail: str) -> None:
    """Note that a fault has ended."""
    _note(FaultInjected(number, time.time(), kind, mesh, tuple(ranks), detail, True))


def _note(event: FaultInjected) -> None:
    _history.append(event)
    bus.emit(event)


def history() -> tuple[FaultInjected, ...]:
    """Every fault that this process has injected or lifted, oldest first; the last 100,000."""
    return tuple(_history)


def forget_history() -> None:
    """Begin a new history."""
    _history.clear()
