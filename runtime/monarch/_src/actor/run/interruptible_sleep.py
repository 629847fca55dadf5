"""A `time.sleep` that cancellations interrupt, and that the stacks of a rank show.

Runs in: a proc, from its first actor on. In CPython only a signal ends a sleep, and signal handlers
run on the main thread only, so a call that sleeps on another thread could not be cancelled. In the
threads of such actors, `time.sleep` is a wait on a lock. In all threads it has a frame of its own,
while that of CPython has none, so a sleeping endpoint would look like one that computes. Code that
has imported the function by name before that keeps the original.
"""

from __future__ import annotations

import threading
import time
from time import monotonic
from types import FrameType

from monarch._src.net.local.interrupt import shield_of_this_thread

_sleep = time.sleep


def sleep(seconds: float, /) -> None:
    """Delay execution for that many seconds, or until the sleeping call is cancelled."""
    _began = monotonic()  # read from this frame by `sleep_of`
    shield = shield_of_this_thread()
    if shield is None or not seconds > 0:
        return _sleep(seconds)
    lock = threading.Lock()
    lock.acquire()
    with shield:
        shield.sleeper = lock
        try:
            shield.let_through()
            lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        finally:
            shield.sleeper = None
    return None


def make_interruptible() -> None:
    """Replace `time.sleep`. Idempotent."""
    time.sleep = sleep


def sleep_of(frame: FrameType) -> tuple[float, float] | None:
    """The seconds that a frame of `sleep` sleeps, and has slept; None for any other frame."""
    if frame.f_code is not sleep.__code__:
        return None
    known = frame.f_locals
    seconds, began = known.get("seconds"), known.get("_began")
    if began is None or not isinstance(seconds, (int, float)):
        return None  # it has just begun
    return seconds, monotonic() - began
