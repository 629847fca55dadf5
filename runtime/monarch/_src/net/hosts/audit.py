"""The audit log: refusals and operators' actions, one JSON object a line, in a file of mode 0600.

Runs in: processes that listen beyond their host; any thread.
Invariants: one system call writes a line, so lines stay whole if several processes write.
Operators' actions are always logged. Events that strangers can cause are limited, so that a flood
costs a bounded file and bounded memory: `rate_limited_log` decides which of equal events are
logged, with their number, and a source of many different events leaves room for others. Every
`PERIOD` the log writes the pending numbers and counts anew, so a worker that runs for months still
logs new events.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from monarch._src.rate_limited_log import SharedTally

PERIOD = timedelta(hours=1)
OTHERS = "others, too many to tell apart"
# Events that strangers and observers can cause.
_COUNTED = frozenset({"refused", "broke off", "linked"})
_SOURCES = ("key", "address", "node")  # facts that identify a source, the surest first

_Kind = tuple[tuple[str, str], ...]


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Audit:
    """One audit log. Without a path it writes no lines, and only counts."""

    def __init__(
        self, path: str | os.PathLike[str] | None, clock: Callable[[], datetime] = _now
    ) -> None:
        """Open the file, and append to it.

        Raises:
            PermissionError: other users could read or write it. OSError: it cannot be opened.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # by event
        self._tallies: dict[str, SharedTally[_Kind]] = {}
        self._since = clock()
        self._fd = -1 if path is None else open_log(Path(path))

    def note(self, what: str, **facts: str) -> None:
        """Log an event, or count it if it is limited. Events with equal facts are of one kind."""
        facts = {"what": what, **{key: value[:1000] for key, value in facts.items()}}
        with self._lock:
            self._counts[what] += 1
            now = self._clock()
            if now - self._since >= PERIOD:
                self._begin_anew(now)
            if what not in _COUNTED:
                self._write(facts, 1, now)
            elif noted := self._tally(what).note(*_kinds(what, facts)):
                kind, count = noted
                self._write(dict(kind), count, now)

    def _tally(self, what: str) -> SharedTally[_Kind]:
        return self._tallies.setdefault(what, SharedTally())

    def count(self, what: str) -> int:
        """How often that event was noted."""
        with self._lock:
            return self._counts[what]

    def close(self) -> None:
        """Write the pending numbers of limited events, and close the file. Idempotent."""
        with self._lock:
            self._begin_anew(self._clock())
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _begin_anew(self, now: datetime) -> None:
        self._since = now
        for tally in self._tallies.values():
            for kind, count in tally.unwritten():
                self._write(dict(kind), count, now)

    def _write(self, facts: dict[str, str], count: int, now: datetime) -> None:
        if self._fd < 0:
            return
        when = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, str | int] = {"time": when, **facts}
        if count > 1:
            line["count"] = count
        # ASCII, because Unicode has several line separators.
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _kinds(what: str, facts: dict[str, str]) -> tuple[_Kind, _Kind, _Kind]:
    """The kinds of an event: its own, that of all from its source, and that of all sources."""
    rest = (("what", what), ("why", OTHERS))
    known = next(((name, facts[name]) for name in _SOURCES if facts.get(name)), None)
    return tuple(facts.items()), (*rest, known) if known else rest, rest


def open_log(path: Path) -> int:
    """The descriptor of a log, to append to it; it is made, with mode 0600, if it does not exist.

    Raises:
        PermissionError: other users could read or write it. OSError: it cannot be opened.
    """
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
