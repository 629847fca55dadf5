"""Imports of modules that messages name, one thread at a time; and the modules of the program.

Python gives each module a lock of its own. If one thread imports a package while another one
imports a module in it, each may hold the lock that the other one needs. Python then lets one of
them go on with half a module: `KeyError: 'torch'`, or a class that lacks its functions. Actors of
one process that are spawned together do just that with the first package that they share.

Runs in: the thread that unpickles. Code that a message names may wait for another actor of this
process, which needs the turn for its answer; so a turn is waited for `LONGEST_WAIT_S` seconds, and
then Python's own locks have to do. A thread takes the turn before the lock of any module: else it
may hold a module that the thread with the turn needs.

Modules of the user's program are known by their files. No path is resolved, and `sysconfig`, which
takes milliseconds, is not asked: a proc looks at some hundred modules at its end. So the standard
library and this package are known by their place, and installed packages by the name of their
folder.
"""

from __future__ import annotations

import os
import re
import sys
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


def is_imported(name: str) -> bool:
    """Whether a module has been imported, and no thread is importing it now."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def _forked() -> None:
    """Forget the turn of a thread that this fork does not have."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_forked)


_LIBRARIES = (
    os.path.join(os.path.dirname(os.__file__), ""),
    os.path.abspath(f"{os.path.dirname(__file__)}/../..") + os.sep,  # runtime/monarch
)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


def is_of_the_program(path: object) -> bool:
    """Whether a module with that `__file__` is neither of a library nor of an installed package."""
    if not isinstance(path, str) or not os.path.isabs(path):  # `torch.ops` has a file name only
        return False
    return not path.startswith(_LIBRARIES) and not _INSTALLED.search(path)
