"""The command line, as a shell runs it, confined to the sessions of one directory.

Runs in: the process of pytest. Without `--in` it would see, and end, other programs' sessions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0


class Commands:
    """`monarch ps`, `kill` and `reap` for the sessions in that directory."""

    def __init__(self, base: Path) -> None:
        self._where = ["--in", str(base)]

    def __call__(self, command: str, *arguments: str) -> tuple[int, str, str]:
        """Run any command: status, stdout, stderr."""
        return monarch(command, *self._where, *arguments)

    def ps(self, *arguments: str) -> str:
        """What it prints."""
        status, out, err = monarch("ps", *self._where, *arguments)
        assert (status, err) == (0, "")
        return out

    def sessions(self, *arguments: str) -> list[dict[str, Any]]:
        """The same as data."""
        return json.loads(self.ps("--json", *arguments))["sessions"]

    def kill(self, *arguments: str) -> tuple[int, str, str]:
        """Status, stdout, stderr."""
        return monarch("kill", *self._where, *arguments)

    def reap(self, *arguments: str) -> tuple[int, str, str]:
        """Status, stdout, stderr."""
        return monarch("reap", *self._where, *arguments)


def monarch(*arguments: str) -> tuple[int, str, str]:
    """Run one command to its end: status, stdout, stderr."""
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-m", "monarch", *arguments],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
