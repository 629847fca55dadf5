"""Gate: lets a test know that a rank has come to a point, and holds it there, without sleeping.

Runs in: the process of the test (`GateKeeper`), and ranks (`Gate.pass_through`). Two named pipes: a
rank writes a byte as it enters and reads one to leave, so any number may stand at one gate.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Gate:
    """What ranks are sent. Only the process that made it can open it."""

    entered: str
    leave: str

    def pass_through(self) -> None:
        """In a rank: say that we are here, and wait until we may go on."""
        write_byte(self.entered)
        with open(self.leave, "rb", buffering=0) as pipe:
            pipe.read(1)


def write_byte(path: str) -> None:
    """One byte into a named pipe that somebody reads."""
    with open(path, "wb", buffering=0) as pipe:
        pipe.write(b".")


class GateKeeper:
    """The side of the test."""

    def __init__(self, folder: Path) -> None:
        self.gate = Gate(str(folder / "entered"), str(folder / "leave"))
        for path in (self.gate.entered, self.gate.leave):
            os.mkfifo(path, 0o600)
        # Open for both, so that neither side ever waits for the other in `open`.
        self._entered = os.open(self.gate.entered, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._leave = os.open(self.gate.leave, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait_entered(self, count: int = 1) -> None:
        """Return when `count` more ranks stand at the gate."""
        poller = select.poll()
        poller.register(self._entered, select.POLLIN)
        while count:
            assert poller.poll(PATIENCE_S * 1000), f"{count} ranks never came to the gate"
            count -= len(os.read(self._entered, count))

    def open(self, count: int = 1) -> None:
        """Let `count` ranks through."""
        os.write(self._leave, b"." * count)

    def close(self) -> None:
        """Give the pipes back."""
        os.close(self._entered)
        os.close(self._leave)


@contextmanager
def gate_in(folder: Path) -> Iterator[GateKeeper]:
    """A gate whose pipes are in that folder."""
    keeper = GateKeeper(folder)
    try:
        yield keeper
    finally:
        keeper.close()
