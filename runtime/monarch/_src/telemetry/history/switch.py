"""Switches the history of this process on and off, and adds log records and collections to it.

Runs in: any process; called on the receiving thread, or by `record` in the client. Loaded only
where history is switched on.
Invariants: `logging` gets no handler, since a root logger with one ignores `basicConfig` and prints
no warnings: the factory of its records is wrapped instead. A record that cannot be formatted does
not disturb the program. The callback of Python's garbage collector takes no lock, since the thread
that collects may hold any.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from time import monotonic_ns
from typing import Any

from monarch._src.actor.attribution import current_attribution
from monarch._src.actor.state.history import HISTORY, LONGEST_TEXT, LogRecord
from monarch._src.config import history_settings
from monarch._src.telemetry.spans import enclosing_id
from monarch._src.wire.messages import SetHistory

_adding = threading.Lock()
_formatting = threading.local()


def begin() -> None:
    """Switch history on if the settings say so. Called when the process gets its node."""
    retention_s, rows = history_settings()
    keep(retention_s, rows)


def on_set_history(message: SetHistory) -> None:
    """The host agent has sent an order."""
    keep(message.retention_s, message.rows)
    profile_torch(message.torch)


def profile_torch(on: bool) -> None:
    """Let torch's profiler run from now on, or end it and keep its events. Idempotent.

    A process that has not imported torch has nothing to profile.
    """
    if "torch" in sys.modules:
        from monarch._src.tensor import torch_events  # it imports torch

        torch_events.follow(on)


def keep(retention_s: float, rows: int) -> None:
    """Keep history for that many seconds, at most that many rows of each kind; 0 s: none."""
    if retention_s > 0 and rows > 0:
        HISTORY.switch_on(int(retention_s * 1e9), rows)
        follow_collector(True)
        if not isinstance(logging.getLogRecordFactory(), _Factory):
            logging.setLogRecordFactory(_Factory(logging.getLogRecordFactory()))
    else:
        follow_collector(False)
        HISTORY.switch_off()
        factory: Any = logging.getLogRecordFactory()
        if isinstance(factory, _Factory):
            logging.setLogRecordFactory(factory.before)


class _Factory:
    """Makes records as before, and adds them to the history."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self.before(*args, **kwargs)
        if HISTORY.events is not None and not getattr(_formatting, "now", False):
            _formatting.now = True  # formatting may log
            try:
                _add(record)
            finally:
                _formatting.now = False
        return record


def _add(record: logging.LogRecord) -> None:
    try:
        text = record.getMessage()
    except Exception as error:
        text = f"({type(error).__name__} while formatting {record.msg!r:.200})"
    text = text[:LONGEST_TEXT]
    ring = HISTORY.events
    if ring is None:
        return
    module = sys.intern(str(record.module))  # `logging` makes it anew for each record
    row = LogRecord(
        monotonic_ns(), record.name, record.levelno, text, enclosing_id(), record.thread or 0,
        record.threadName or "", module, record.pathname, record.lineno,
        current_attribution().actor,
    )  # fmt: skip
    with _adding:
        ring.add_text(row, sys.getsizeof(text))


LEAST_COLLECTION_NS = 500_000
"""Shorter runs are not remembered: there may be thousands in a second."""
COLLECTOR_TRACK = "garbage collector"


class CollectorSpans:
    """A callback of `gc` that remembers each run as a span."""

    def __init__(self) -> None:
        self._begun_ns = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """A run begins or has ended."""
        now_ns = monotonic_ns()
        if phase == "start":
            self._begun_ns = now_ns
        elif self._begun_ns and now_ns - self._begun_ns >= LEAST_COLLECTION_NS:
            name = f"gc of generation {info['generation']}"
            HISTORY.add_span(name, current_attribution(), self._begun_ns, now_ns, COLLECTOR_TRACK)


_callback = CollectorSpans()


def follow_collector(on: bool) -> None:
    """Begin or cease to remember runs. Idempotent."""
    if on and _callback not in gc.callbacks:
        gc.callbacks.append(_callback)
    elif not on and _callback in gc.callbacks:
        gc.callbacks.remove(_callback)
