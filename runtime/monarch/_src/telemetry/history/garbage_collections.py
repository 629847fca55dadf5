"""Runs of Python's garbage collector, as spans in the history of a process.

Runs in: any process, while it keeps history; the collector calls on whichever thread it runs.
Invariants: takes no lock, since the thread that collects may hold any; short runs are left out.
"""

from __future__ import annotations

import gc
from time import monotonic_ns
from typing import Any

from monarch._src.actor.attribution import current_attribution
from monarch._src.actor.state.history import HISTORY

LEAST_NS = 500_000
"""Shorter runs are not remembered: there may be thousands in a second."""
TRACK = "garbage collector"


class CollectorSpans:
    """A callback of `gc` that remembers each run as a span."""

    def __init__(self) -> None:
        self._begun_ns = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """A run begins or has ended."""
        now_ns = monotonic_ns()
        if phase == "start":
            self._begun_ns = now_ns
        elif self._begun_ns and now_ns - self._begun_ns >= LEAST_NS:
            name = f"gc of generation {info['generation']}"
            HISTORY.add_span(name, current_attribution(), self._begun_ns, now_ns, TRACK)


_callback = CollectorSpans()


def follow(on: bool) -> None:
    """Begin or cease to remember runs. Idempotent."""
    if on and _callback not in gc.callbacks:
        gc.callbacks.append(_callback)
    elif not on and _callback in gc.callbacks:
        gc.callbacks.remove(_callback)
