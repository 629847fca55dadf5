"""The audit log of the admin server: one JSON object a line, in a file of mode 0600.

Runs in: the admin server, any thread. Logs every action of an owner, before and after it, and every
refused one.
Invariant: one system call writes a line, so lines stay whole.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path

from monarch._src.net.hosts.audit import open_log

LONGEST = 1000


class ActionLog:
    """The log in one file.

    Raises:
        PermissionError: other users could read or write the file. OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = open_log(path)

    def write(self, event: str, **facts: object) -> None:
        """Write one event, with the time."""
        told = {key: str(value)[:LONGEST] for key, value in facts.items()}
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **told}) + "\n"
        os.write(self._fd, line.encode())

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def usual_path() -> Path:
    """The file of this user: it outlives the sessions that owners stop."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "monarch" / "admin-actions.jsonl"
