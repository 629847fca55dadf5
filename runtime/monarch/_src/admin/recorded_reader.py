"""Reads a recording as the admin server reads live sessions, at any time that it covers.

Runs in: the admin server; any thread. The file is opened for each question and closed after it.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

from monarch._src.admin.cluster_reader import NODE_TABLES, ClusterReader, rows_of
from monarch._src.admin.state.nodes import Cluster, HostSource, Missing, build
from monarch._src.telemetry.replay.file import RecordedSpan, query_file, span_of
from monarch._src.telemetry.replay.state.layout import LEFT_OUT
from monarch._src.telemetry.sql.collect import Collected
from monarch._src.telemetry.sql.missing_rows import MissingRows
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.telemetry.sql.state.schema import STORED_FRAMES, TABLES
from monarch._src.wire.messages import Condition

NOT_RECORDED = "this table is not recorded"


class RecordedReader(ClusterReader):
    """A reader of the state at `at_s` seconds after the first sample; None: at the last one."""

    def __init__(
        self, path: Path, at_s: float | None = None, span: RecordedSpan | None = None
    ) -> None:
        """
        Args:
            span: the times that the file covers; None: they are read from it.

        Raises:
            QueryError: the file is no recording, or DuckDB is not installed.
            FileNotFoundError: there is no such file.
        """
        super().__init__(_none)
        self.path = path
        self.at_s = at_s
        self._span = span_of(path) if span is None else span

    @property
    def span(self) -> RecordedSpan:
        """The times that the recording covers."""
        return self._span

    def at(self, at_s: float | None) -> RecordedReader:
        """A reader of another time."""
        return RecordedReader(self.path, at_s, self._span)

    @property
    def now_us(self) -> int:
        """The time whose state is read, in microseconds since 1970."""
        first, last = self._span.first_us, self._span.last_us
        return last if self.at_s is None else min(last, first + int(self.at_s * 1e6))

    def collect(self, needs: dict[str, Need], timeout_s: float | None = None) -> Collected:
        """The rows of these needs, with the rows that were missing when they were recorded."""
        collected = Collected()
        for table, need in needs.items():
            collected.begin(table, need)
            if table == STORED_FRAMES.name:
                continue  # those are of live sessions
            if table in LEFT_OUT:
                collected.missing.append(MissingRows(table, str(self.path), NOT_RECORDED))
                continue
            found = query_file(self.path, _select(table, need), self.at_s)
            for column, cells in zip(need.columns, zip(*found.rows, strict=True), strict=False):
                collected.tables[table][column] = list(cells)
            collected.missing += [one for one in found.missing if one.table == table]
        return collected

    def cluster(self, fresh_s: float = inf) -> Cluster:
        """The nodes at that time. A recording does not change, so each is its own snapshot 1."""
        collected = self.collect({name: _whole(name) for name in NODE_TABLES})
        tables = {name: rows_of(collected, name) for name in NODE_TABLES}
        sessions = dict.fromkeys(str(row["session"]) for row in tables["hosts"])
        sources = [HostSource(name, str(self.path), "") for name in sessions]
        missing = [Missing(one.table, one.where, one.reason) for one in collected.missing]
        return build(1, self.now_us, sources, tables, missing)

    def kept(self, number: int) -> Cluster | None:
        """The snapshot of that number."""
        return self.cluster() if number == 1 else None


def _none() -> list[Any]:
    return []


def _whole(table: str) -> Need:
    return Need(tuple(column.name for column in TABLES[table].columns))


def _select(table: str, need: Need) -> str:
    columns = ", ".join(f'"{name}"' for name in need.columns) or "1"
    where = " AND ".join(_condition(one) for one in need.conditions)
    limit = f" LIMIT {need.limit}" if need.limit >= 0 else ""
    return f"SELECT {columns} FROM {table}{f' WHERE {where}' if where else ''}{limit}"


def _condition(condition: Condition) -> str:
    column = f'"{condition.column}"'
    values = ", ".join(map(_literal, condition.values))
    if condition.operator == "in":
        return f"{column} IN ({values})"
    return f"{column} {condition.operator} {values}"


def _literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)
