"""The file of a recording: written by a recorder, read by queries.

Runs in: the process that records, on its recording thread. A query reads in the process of the
engine, for the thread that asks and waits.
Owns: one connection to the file. A file has one writer, and readers when the writer has closed it.
Invariants: a sample is written in one transaction, so a reader sees all of it or nothing, also when
the writer was killed. A reader can neither change the file nor reach another one. The file and the
log beside it, in which DuckDB keeps what is not in the file yet, are closed to other users.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from monarch._src.errors import QueryError, QueryTimeoutError
from monarch._src.telemetry.replay.state import layout
from monarch._src.telemetry.sql.collect import Collected
from monarch._src.telemetry.sql.engine import (
    MEMORY_MB,
    ResultRows,
    check_select,
    duckdb_module,
    engine,
    fetched,
    load,
    refusals,
    restrict,
)
from monarch._src.telemetry.sql.engine_process import call_engine
from monarch._src.telemetry.sql.missing_rows import MissingRows
from monarch._src.telemetry.sql.query import QueryResult, check_timeout, timed_out
from monarch._src.telemetry.sql.state.schema import TABLES

TIDY_EVERY = 30
"""After how many samples old rows are dropped."""
_opening = threading.Lock()
"""Connections of one process to one file share a database; the first one restricts and locks it."""


class RecordingFile:
    """A file that is written."""

    def __init__(self, path: Path, retention_us: int, most_rows: int) -> None:
        """Make the file.

        Raises:
            QueryError: DuckDB is not installed. FileExistsError: the file exists. OSError: the file
                cannot be made.
        """
        self._duckdb = duckdb_module()
        if path.exists():
            raise FileExistsError(f"{path} exists already; record to another file")
        self._retention_us = retention_us
        self._most_rows = most_rows
        self._samples = 0
        try:
            self._connection: Any = self._duckdb.connect(str(path), config={"threads": "1"})
        except self._duckdb.Error as error:
            raise OSError(f"{path} cannot be written: {error}") from None
        os.chmod(path, 0o600)  # it has arguments of log lines, as the logs of a job do
        self._log = f"{path}.wal"
        for statement in (*layout.creation(), *layout.staging()):
            self._write(statement)

    def _write(self, statement: str) -> None:
        """Run a statement; DuckDB would make its log with a mode that lets others read it."""
        os.close(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection.execute(statement)

    def add(self, collected: Collected, now_us: int) -> None:
        """Write a sample."""
        run = self._connection.execute
        run("BEGIN")
        try:
            for name, columns in collected.tables.items():
                load(self._connection, f"new_{name}", TABLES[name], columns)
                for statement in layout.moves(name, now_us):
                    run(statement)
            run(f"INSERT INTO {layout.SCHEMA}.samples VALUES ({now_us})")
            run(layout.losses(now_us))
            for one in collected.missing:
                texts = ", ".join(map(layout.literal, (one.table, one.where, one.reason)))
                run(f"INSERT INTO {layout.SCHEMA}.missing_rows VALUES ({texts}, {now_us})")
            self._write("COMMIT")
        except BaseException:
            run("ROLLBACK")
            raise
        self._samples += 1
        if not self._samples % TIDY_EVERY:
            self._tidy(now_us)

    def _tidy(self, now_us: int) -> None:
        for name in layout.bounded():
            for statement in layout.bounds(name, now_us - self._retention_us, self._most_rows):
                self._write(statement)
        self._connection.execute("CHECKPOINT")

    def watermarks(self) -> dict[str, int]:
        """For each table, the time from which events are needed next."""
        found: dict[str, int] = {}
        for name in layout.EVENTS:
            (since_us,) = self._connection.execute(layout.watermark(name)).fetchone()
            if since_us is not None:
                found[name] = since_us
        return found

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()


@dataclass(frozen=True)
class RecordedSpan:
    """The times of the first and the last sample of a recording, in microseconds since 1970."""

    first_us: int
    last_us: int
    samples: int


def span_of(path: str | Path) -> RecordedSpan:
    """The times that a recording covers.

    Raises:
        QueryError: the file is no recording, has no sample, or DuckDB is not installed.
        FileNotFoundError: there is no such file.
    """
    connection = _opened(duckdb_module(), path, MEMORY_MB)
    try:
        first_us, last_us, samples = connection.execute(
            f"SELECT min(recorded_us), max(recorded_us), count(*) FROM {layout.SCHEMA}.samples"
        ).fetchone()
    finally:
        connection.close()
    if not samples:
        raise QueryError(f"{path} has no sample; its recording was ended before the first one")
    return RecordedSpan(first_us, last_us, samples)


def query_file(
    path: str | Path, sql: str, at: float | None = None, timeout: float | None = None
) -> QueryResult:
    """Run a SELECT over a recording that `record_to` or `monarch query --record` has made.

    Tables have their usual names. `history.procs` and so on have the rows of all samples, with
    `recorded_us`; `missing` has the rows that the sample lacks.

    Args:
        path: the file.
        sql: one query in DuckDB's dialect, over the tables and nothing else.
        at: show the tables as they were that many seconds after the first sample; None: the last.
        timeout: seconds for the query; None: as long as it takes.

    Raises:
        QueryError: DuckDB refuses the query, it is not one SELECT, it needs more than 2 GB of
            memory, the file is no recording, or DuckDB is not installed.
        QueryTimeoutError: it has not ended within the time-out.
        FileNotFoundError: there is no such file.
        ValueError: a negative, infinite or NaN time-out.
    """
    check_timeout(timeout)
    _check_exists(path)
    deadline = inf if timeout is None else time.monotonic() + timeout
    try:
        answer, missing = call_engine(
            _answer_from, os.path.abspath(path), sql, at, deadline=deadline
        )
    except QueryTimeoutError:
        raise timed_out(timeout or 0) from None
    return QueryResult(answer.columns, answer.types, answer.rows, missing)


def _answer_from(
    path: str, sql: str, at: float | None
) -> tuple[ResultRows, tuple[MissingRows, ...]]:
    """The rows and the missing ones. Runs in the process of the engine."""
    duckdb = duckdb_module()
    connection = _opened(duckdb, path, engine().memory_mb)
    try:
        with refusals(duckdb):
            at_us = _chosen_time(connection, at)
            check_select(duckdb, sql)
            return fetched(connection.execute(sql)), _missing(connection, at_us)
    finally:
        connection.close()


def _check_exists(path: str | Path) -> None:
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no recording {path}; `monarch query --record` makes one")


def _opened(duckdb: Any, path: str | Path, memory_mb: int) -> Any:
    _check_exists(path)
    with _opening:
        try:
            connection = duckdb.connect(str(path), read_only=True, config={"threads": "1"})
        except duckdb.Error as error:
            raise QueryError(f"{path} cannot be read: {str(error).strip()}") from None
        try:
            connection.execute(f"SELECT recorded_us FROM {layout.SCHEMA}.samples LIMIT 0")
        except duckdb.Error:
            connection.close()
            raise QueryError(
                f"{path} is no recording; `monarch query --record` makes one"
            ) from None
        if connection.execute("SELECT current_setting('lock_configuration')").fetchone() == (
            False,
        ):
            restrict(connection, memory_mb)
    return connection


def _chosen_time(connection: Any, at: float | None) -> int | None:
    """The time of the sample to show; sets the variable of the views."""
    limit = ""
    if at is not None:
        (first_us,) = connection.execute(
            f"SELECT min(recorded_us) FROM {layout.SCHEMA}.samples"
        ).fetchone()
        limit = f" WHERE recorded_us <= {0 if first_us is None else first_us + int(at * 1e6)}"
    (at_us,) = connection.execute(
        f"SELECT max(recorded_us) FROM {layout.SCHEMA}.samples{limit}"
    ).fetchone()
    if at is not None:
        connection.execute(f"SET VARIABLE {layout.AT} = {0 if at_us is None else at_us}")
    return at_us


def _missing(connection: Any, at_us: int | None) -> tuple[MissingRows, ...]:
    if at_us is None:
        return ()
    found: Sequence[tuple[str, str, str]] = connection.execute(
        f'SELECT "name", place, reason FROM {layout.SCHEMA}.missing_rows '
        f"WHERE recorded_us = {at_us}"
    ).fetchall()
    return tuple(MissingRows(*row) for row in found)
