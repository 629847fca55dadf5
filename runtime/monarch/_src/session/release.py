"""Has what a kept session has on workers ended by a program of its own (`release_main`).

Runs in: a host agent that ends, which has no keys of any job, and deals with no other host itself.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import monarch
from monarch._src.config import settings

log = logging.getLogger("monarch.agent")
_ROOT = str(Path(monarch.__file__).parent.parent)
_PROGRAM = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "root = sys.argv.pop(); root in sys.path or sys.path.append(root); "
    "from monarch._src.session.release_program import main; main()"
)
LONGEST_S = 8.0  # an agent that is told to end is killed after 15
ENDS_S = 2.0


def patience() -> float:
    """For how long workers are tried: that is what an agent's end may take longer."""
    return min(settings().liveness / 3, LONGEST_S)


class Releaser:
    """That program, while it runs."""

    def __init__(self, directory: Path) -> None:
        """`directory`: of the session, which says what is where."""
        self._child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(directory), _ROOT], cwd="/",
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def wait(self) -> None:
        """Return when it has ended. Bounded in time."""
        try:
            self._child.wait(patience() + ENDS_S)
        except subprocess.TimeoutExpired:
            log.warning("what is kept on workers was not ended in time")
            self._child.kill()
            self._child.wait()
