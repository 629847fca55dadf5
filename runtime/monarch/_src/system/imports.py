"""One thread of a process at a time imports what messages name.

Python gives each module a lock of its own. If one thread imports a package while another one
imports a module in it, each may hold the lock that the other one needs. Python then lets one of
them go on with half a module: `KeyError: 'torch'`, or a class that lacks its functions. Actors of
one process that are spawned together do just that with the first package that they share.

Runs in: the thread that unpickles. Code that a message names may wait for another actor of this
process, which needs the turn for its answer; so a turn is waited for `LONGEST_WAIT_S` seconds, and
then Python's own locks have to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

LONGEST_WAIT_S = 60.0
_turn = threading.RLock()


@contextmanager
def turn_to_import() -> Generator[None]:
    """Import in this context while no other thread does. Nested turns are allowed."""
    turn = _turn
    has_turn = turn.acquire(timeout=LONGEST_WAIT_S)
    try:
        yield
    finally:
        if has_turn:
            turn.release()


def _forked() -> None:
    """Forget the turn of a thread that this fork does not have."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_forked)
