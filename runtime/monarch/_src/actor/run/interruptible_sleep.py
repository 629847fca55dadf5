"""An interruptible `time.sleep` for actors that do not run on the main thread.

Runs in: a proc. In CPython only a signal ends a sleep, and signal handlers run on the main thread
only, so a call that sleeps on another thread could not be cancelled. From the first such actor on,
`time.sleep` is a wait on a lock in the threads of actors, and unchanged in all others. Code that
has imported the function by name before that keeps the original.
"""

from __future__ import annotations

import threading
import time

from monarch._src.net.local.interrupt import shield_of_this_thread

_sleep = time.sleep


def sleep(seconds: float, /) -> None:
    """Delay execution for that many seconds, or until the sleeping call is cancelled."""
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
