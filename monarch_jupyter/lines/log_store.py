"""All lines that ranks of this kernel have written, on disk.

Runs in: the kernel; the output thread adds, any thread reads.
Owns: an unnamed temporary file, which ends with this process in any case; until `close`.
Invariants: a line is stored before it is shown; the oldest lines are dropped only when all together
exceed `limit`, and every page has the number of dropped lines.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from monarch_jupyter.rendering.lines import LogLine, LogPage

if TYPE_CHECKING:
    from monarch.observe import OutputLine

LIMIT = 1 << 30
"""Bytes of text that are kept, of all meshes together."""
_SLACK = 16
"""One in this many parts of the limit is dropped at once when the limit is reached."""
_SCHEMA = """
CREATE TABLE meshes (uid TEXT PRIMARY KEY, name TEXT, began INTEGER);
CREATE TABLE lines (id INTEGER PRIMARY KEY, uid TEXT, rank INTEGER, stream TEXT, at REAL,
                    text TEXT, cell INTEGER);
CREATE INDEX by_rank ON lines (uid, rank);
CREATE INDEX by_cell ON lines (cell);
"""


class LogStore:
    """The lines of one kernel."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        # The empty name is a private file on disk, which SQLite unlinks as soon as it has it.
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.create_function("matches", 2, _matches, deterministic=True)
        self._db.execute("PRAGMA journal_mode = OFF")  # nothing of it outlives this process
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(_SCHEMA)
        self._points: dict[tuple[str, int], dict[str, int]] = {}
        self._known: set[str] = set()
        self._size = 0
        self._given_up = 0
        self._closed = False
        self._watchers: list[Callable[[], None]] = []

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` on the adding thread after lines were added; returns the undo function."""
        self._watchers.append(watcher)

        def unwatch() -> None:
            self._watchers = [one for one in self._watchers if one != watcher]

        return unwatch

    def add(self, lines: Sequence[OutputLine]) -> None:
        """Store these lines, until `close`."""
        now = time.time()
        with self._lock:
            if self._closed or not lines:
                return
            self._db.execute("BEGIN")
            for line in lines:
                if line.mesh_uid not in self._known:
                    self._known.add(line.mesh_uid)
                    new = (line.mesh_uid, line.mesh, len(self._known))
                    self._db.execute("INSERT INTO meshes VALUES (?, ?, ?)", new)
                self._points.setdefault((line.mesh_uid, line.rank), line.point)
            self._db.executemany(
                "INSERT INTO lines (uid, rank, stream, at, text, cell) VALUES (?, ?, ?, ?, ?, ?)",
                [(x.mesh_uid, x.rank, x.stream, now, _storable(x.text), x.origin) for x in lines],
            )
            self._size += sum(len(line.text) for line in lines)
            if self._size > self._limit:
                self._give_up()
            self._db.execute("COMMIT")
        for watcher in self._watchers:
            watcher()

    def _give_up(self) -> None:
        goal = self._limit - self._limit // _SLACK
        last = 0
        for number, length in self._db.execute("SELECT id, length(text) FROM lines ORDER BY id"):
            if self._size <= goal:
                break
            self._size -= length
            self._given_up += 1
            last = number
        self._db.execute("DELETE FROM lines WHERE id <= ?", (last,))

    def names(self) -> list[str]:
        """The meshes of which there are lines, also of those that have ended; the newest last."""
        with self._lock:
            rows = self._db.execute("SELECT name FROM meshes ORDER BY began").fetchall()
        return list(dict.fromkeys(name for (name,) in rows))

    def page(
        self,
        name: str | None,
        *,
        cell: int | None = None,
        ranks: Collection[int] | None = None,
        grep: str | None = None,
        page: int | None = None,
        length: int = 100,
        whole_pages: bool = False,
    ) -> LogPage:
        """A page of the lines of the newest mesh of this name; page 1 is the oldest.

        `name` None is every mesh; `cell`: only lines that this cell caused; `grep` is a regular
        expression that lines match. `page` None is the last `length` lines or, with `whole_pages`,
        the last page.

        Raises:
            KeyError: no mesh of this name has written anything. IndexError: there is no such page.
        """
        with self._lock:
            where, given = self._where(name, cell, ranks, grep)
            (total,) = self._db.execute(
                f"SELECT count(*) FROM lines WHERE {where}", given
            ).fetchone()
            last = max(1, -(-total // length))
            if page is None and whole_pages:
                page = last
            first = max(0, total - length) if page is None else (page - 1) * length
            if page is not None and not 1 <= page <= last:
                raise IndexError(last)
            rows = self._db.execute(
                f"SELECT name, uid, rank, stream, at, text FROM lines JOIN meshes USING (uid) "
                f"WHERE {where} ORDER BY id LIMIT ? OFFSET ?",
                [*given, length, first],
            ).fetchall()
        lines = tuple(
            LogLine(mesh, uid, rank, self._points[uid, rank], stream, at, text)
            for mesh, uid, rank, stream, at, text in rows
        )
        return LogPage(name or "", lines, first + 1 if lines else 0, total, self._given_up)

    def _where(
        self,
        name: str | None,
        cell: int | None,
        ranks: Collection[int] | None,
        grep: str | None,
    ) -> tuple[str, list[Any]]:
        clauses, given = ["1"], list[Any]()
        if name is not None:
            found = self._db.execute(
                "SELECT uid FROM meshes WHERE name = ? ORDER BY began DESC", (name,)
            ).fetchone()
            if found is None:
                raise KeyError(name)
            clauses.append("uid = ?")
            given += found
        if cell is not None:
            clauses.append("cell = ?")
            given.append(cell)
        if ranks is not None:
            clauses.append(f"rank IN ({','.join('?' * len(ranks))})")
            given += sorted(ranks)
        if grep is not None:
            clauses.append("matches(?, text)")
            given.append(grep)
        return " AND ".join(clauses), given

    def close(self) -> None:
        """Remove all lines. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._db.close()


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def _storable(text: str) -> Any:
    # SQLite cannot store lone surrogates, so they are escaped.
    return text.encode("utf-8", "backslashreplace").decode()


_shared: LogStore | None = None


def shared_store() -> LogStore | None:
    """The store of the loaded extension; None if it is not loaded."""
    return _shared


def share(store: LogStore | None) -> None:
    """Make this the store that commands read."""
    global _shared
    _shared = store
