"""Starts the program that ends a kept session's meshes on workers (`programs.release_session`).

Runs in: a host agent that ends. An agent has no keys of any job, and connects to no other host.
"""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

from monarch._src.config import settings
from monarch._src.system.main_programs import RELEASE_SESSION, command

log = logging.getLogger("monarch.agent")
LONGEST_S = 8.0  # an agent is killed 15 s after it was told to end
ENDS_S = 2.0


def patience() -> float:
    """How many seconds workers have to answer: the time by which an agent's end may be delayed."""
    return min(settings().liveness / 3, LONGEST_S)


class Releaser:
    """The running program."""

    def __init__(self, directory: Path) -> None:
        """Args:
        directory: of the session, with the record of its workers.
        """
        self._child = subprocess.Popen(
            command(RELEASE_SESSION, [str(directory)]), cwd="/", stdin=subprocess.DEVNULL
        )

    def wait(self) -> None:
        """Wait for the program to end. Bounded in time."""
        try:
            self._child.wait(patience() + ENDS_S)
        except subprocess.TimeoutExpired:
            log.warning("kept meshes on workers were not ended in time")
            self._child.kill()
            self._child.wait()
