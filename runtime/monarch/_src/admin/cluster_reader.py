"""Reads the state of sessions of this machine as snapshots, as an observer of their agents.

Runs in: the admin server and the command line; any thread. Owns: the last snapshots.
Invariants: one thread asks agents at a time, so a flood of requests costs one question at a time;
a snapshot is never changed after it was made; every question is bounded in time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch._src.admin.state.nodes import Cluster, HostSource, Missing, build
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions, named
from monarch._src.telemetry.sql.collect import Collected, collect_from
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.telemetry.sql.state.schema import TABLES, column_names

if TYPE_CHECKING:
    from monarch._src.admin.remote_hosts import RemoteAnswer, RemoteHosts
    from monarch._src.telemetry.replay.file import RecordedSpan

NODE_TABLES = ("hosts", "procs", "actors")
FRESH_S = 1.0
REMOTE_S = 3.0
"""How long a host of another machine has for connecting and answering."""
KEPT = 8
"""How many snapshots are kept for cursors."""


class NoSessionError(LookupError):
    """There is no such session, or there are several."""


def find_live(bases: Sequence[str] | None, names: Sequence[str]) -> list[Session]:
    """The live sessions of this user: all, or those of these names (or their first letters).

    Raises:
        NoSessionError: a name matches no session, or several.
    """
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    if not names:
        return live
    chosen: list[Session] = []
    for name in names:
        found = named(name, live)
        if len(found) != 1:
            known = ", ".join(one.name for one in found or live) or "none"
            problem = "several sessions match" if found else "there is no session"
            raise NoSessionError(
                f"{problem} {name!r}; running sessions: {known} (see `monarch ps`)"
            )
        chosen += found
    return chosen


def whole(tables: Iterable[str]) -> dict[str, Need]:
    """The need of all rows and columns of these tables."""
    return {name: Need(tuple(column_names(TABLES[name].columns))) for name in tables}


def rows_of(collected: Collected, table: str) -> list[dict[str, Any]]:
    """The rows of a collected table, as dicts by the name of the column."""
    columns = collected.tables.get(table, {})
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def missing_of(collected: Collected) -> tuple[Missing, ...]:
    """The missing rows of a collection."""
    return tuple(Missing(one.table, one.where, one.reason) for one in collected.missing)


class ClusterReader:
    """Reads the sessions that `find` returns, which is asked anew for each snapshot."""

    def __init__(
        self,
        find: Callable[[], Sequence[Session]],
        timeout_s: float | None = None,
        remote: RemoteHosts | None = None,
    ) -> None:
        self._find = find
        self._timeout_s = timeout_s
        self._remote = remote
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Cluster]] = deque(maxlen=KEPT)
        self._number = 0

    def sessions(self) -> list[Session]:
        """The sessions now."""
        return list(self._find())

    @property
    def now_us(self) -> int:
        """The time whose state is read, in microseconds since 1970."""
        return time.time_ns() // 1000

    @property
    def span(self) -> RecordedSpan | None:
        """The times that a recording covers; None for live sessions."""
        return None

    def at(self, at_s: float | None) -> ClusterReader:
        """A reader of another time of a recording.

        Raises:
            ValueError: these are live sessions, which have no other time.
        """
        if at_s is not None:
            raise ValueError("only a recording can be read at another time")
        return self

    def collect(self, needs: dict[str, Need], timeout_s: float | None = None) -> Collected:
        """The rows of these needs now, from the agents of all sessions."""
        asked = [(one.name, one.directory) for one in self.sessions()]
        return collect_from(asked, needs, self._timeout_s if timeout_s is None else timeout_s)

    def remote(self) -> list[RemoteAnswer]:
        """The answers of the hosts of other machines, asked now."""
        timeout_s = REMOTE_S if self._timeout_s is None else self._timeout_s
        return [] if self._remote is None else self._remote.look(timeout_s)

    def cluster(self, fresh_s: float = FRESH_S) -> Cluster:
        """A snapshot that is at most that old."""
        with self._lock:
            if self._kept and time.monotonic() - self._kept[-1][0] < fresh_s:
                return self._kept[-1][1]
            sessions = self.sessions()
            asked = [(one.name, one.directory) for one in sessions]
            collected = collect_from(asked, whole(NODE_TABLES), self._timeout_s)
            remote = self.remote()
            tables = {name: rows_of(collected, name) for name in NODE_TABLES}
            for one in remote:
                tables["hosts"] += one.hosts
                tables["procs"] += one.procs
            self._number += 1
            cluster = build(
                self._number,
                time.time_ns() // 1000,
                [*(_source(one) for one in sessions), *(one.source for one in remote)],
                tables,
                [*missing_of(collected), *(m for one in remote for m in one.missing)],
            )
            self._kept.append((time.monotonic(), cluster))
            return cluster

    def kept(self, number: int) -> Cluster | None:
        """The snapshot of that number; None if it is not kept any more."""
        with self._lock:
            return next((one for _, one in self._kept if one.number == number), None)


def _source(session: Session) -> HostSource:
    serves = session.record.serves if session.record is not None else ""
    return HostSource(session.name, str(session.directory), serves)


def session_named(sessions: Iterable[Session], name: str) -> Session | None:
    """The session of that full name."""
    return next((one for one in sessions if one.name == name), None)


def address_of_socket(path: Path) -> str:
    """The URL of a Unix socket, as HTTP clients for such sockets write it."""
    from urllib.parse import quote

    return f"http+unix://{quote(str(path), safe='')}"
