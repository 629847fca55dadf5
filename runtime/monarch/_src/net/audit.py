"""What was refused and what operators did, one JSON object a line, in a file of mode 0600.

Runs in: processes that listen beyond their host; any thread.
Invariants: a line is written by one call and so stays whole, whoever else writes. A flood costs a
bounded file and bounded memory: of notes that are alike those are written that `core.tally` says,
with their number; the last number is written at the end.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from monarch._src.core.tally import Tally


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Audit:
    """One log. With no path it is kept in memory by nobody, and only counts."""

    def __init__(
        self, path: str | os.PathLike[str] | None, clock: Callable[[], datetime] = _now
    ) -> None:
        """Open it, and go on behind what it holds.

        Raises:
            PermissionError: others could read or write it. OSError: it cannot be opened.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._tally: Tally[tuple[tuple[str, str], ...]] = Tally()
        self._fd = -1 if path is None else _open(Path(path))

    def note(self, what: str, **facts: str) -> None:
        """Write what happened. Notes whose facts are all equal are alike."""
        facts = {"what": what, **{key: value[:1000] for key, value in facts.items()}}
        kind = tuple(facts.items())
        with self._lock:
            if not self._tally.tells_apart(kind):
                facts = {"what": what, "why": "others, too many to tell apart"}
                kind = tuple(facts.items())
            if count := self._tally.note(kind):
                self._write(facts, count)

    def count(self, what: str) -> int:
        """How many notes of that there were."""
        with self._lock:
            return sum(n for kind, n in self._tally.counts() if ("what", what) in kind)

    def close(self) -> None:
        """Write how often there was each of those that were not written each time. Idempotent."""
        with self._lock:
            for kind, count in self._tally.unwritten():
                self._write(dict(kind), count)
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write(self, facts: dict[str, str], count: int) -> None:
        if self._fd < 0:
            return
        when = self._clock().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, str | int] = {"time": when, **facts}
        if count > 1:
            line["count"] = count
        # ASCII: there are more ends of lines than one in other text.
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or mode & 0o077:
        os.close(fd)
        raise PermissionError(
            f"{path} must be a file of your own with mode 0600 (it has {mode:04o}); run "
            f"`chmod 600 {path}`, or give another"
        )
    return fd
