"""The jobs of this process that wait for their hosts, for front ends to show as progress.

Runs in: clients, any thread. Writes one line to a terminal, which it overwrites; other front ends
ask for `open_waits`.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

log = logging.getLogger("monarch.job")
_numbers = itertools.count(1)
_CLEAR = "\r\033[K"


@dataclass(frozen=True)
class OpenWait:
    """A wait for hosts. `text` names their source; `began` is a monotonic time in seconds."""

    number: int
    text: str
    hosts: int
    began: float


class Wait:
    """A wait that is shown: as a line of the terminal, and by `open_waits`."""

    def __init__(self, hosts: int) -> None:
        self.described = OpenWait(next(_numbers), "", hosts, time.monotonic())
        # In a notebook the front end shows it; a file or pipe gets the log only.
        self._terminal = sys.stderr.isatty() and "ipykernel" not in sys.modules

    def update(self, text: str) -> None:
        """Show this text from now on."""
        before = self.described
        if text != before.text:
            log.info("%s", text)
            self.described = replace(before, text=text)
            _open[before.number] = self
        if self._terminal:
            waited = time.monotonic() - before.began
            sys.stderr.write(f"{_CLEAR}{text}, {waited:.0f} s")
            sys.stderr.flush()

    def close(self) -> None:
        """Take it away. Idempotent."""
        if _open.pop(self.described.number, None) is not None and self._terminal:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


_open: dict[int, Wait] = {}


@contextmanager
def waiting(hosts: int) -> Generator[Wait]:
    """A wait for that many hosts, for as long as the block runs."""
    wait = Wait(hosts)
    try:
        yield wait
    finally:
        wait.close()


def open_waits() -> list[OpenWait]:
    """The jobs of this process that wait for their hosts, oldest first."""
    return [wait.described for wait in list(_open.values())]
