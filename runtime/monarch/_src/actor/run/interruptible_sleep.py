"""`time.sleep` for actors that are not on the main thread: one that can be cut short.

Runs in: a proc. CPython lets nothing but a signal end a sleep, and runs signal handlers on the main
thread only; a call of an actor that sleeps on another thread could not be cancelled. So with the
first such actor `time.sleep` becomes a wait on a lock for threads of actors, and stays what it is
for all others. Whoever has imported the function itself before that keeps the old one.
"""

from __future__ import annotations

import threading
import time

from monarch._src.net.local.interrupt import shield_of_this_thread

_sleep = time.sleep


def sleep(seconds: float, /) -> None:
    """Delay execution for that many seconds, or until the call that sleeps is cancelled."""
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
    """Take the place of `time.sleep`. Idempotent."""
    time.sleep = sleep
