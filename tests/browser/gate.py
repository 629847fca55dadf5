"""A gate at which ranks wait until a test has seen what it wants to see."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# For the ranks: any number of them may wait, and one that comes late goes straight through.
WAIT_AT_GATE = """
import fcntl

def wait_at_gate(path):
    with open(path) as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)

"""


@contextmanager
def shut_gate(path: Path) -> Iterator[None]:
    """Whoever waits at this gate waits until the block ends."""
    with path.open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield
