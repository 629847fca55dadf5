"""`query`: SQL over the live state of this session.

Runs in: a client or a rank, on the calling thread, which waits for agents and then for the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from math import inf
from typing import Any, TypeAlias

import msgspec

from monarch._src.actor.runtime import runtime_or_none
from monarch._src.errors import QueryError, QueryTimeoutError
from monarch._src.telemetry.sql.collect import Collected, collect_here
from monarch._src.telemetry.sql.engine import find_needs, run_on
from monarch._src.telemetry.sql.engine_process import call_engine
from monarch._src.telemetry.sql.missing_rows import (
    DroppedRows,
    MissingRows,
    dropped_lines,
    missing_lines,
    not_kept_lines,
)
from monarch._src.telemetry.sql.state.history_tables import RECORDINGS
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.telemetry.sql.state.schema import TABLES
from monarch._src.telemetry.sql.state.views import VIEWS

Collect: TypeAlias = "Callable[[Mapping[str, Need], float | None], Collected]"
MOST_SHOWN = 40
PAST = frozenset((
    "events", "message_status_events", "messages", "sent_messages", "span_events", "spans",
    "torch_events",
))  # fmt: skip
"""Tables that have rows of the past only where history is kept."""
KEPT_S = 1.0
"""Seconds for the question whether it is kept, which is asked if such a table is empty."""
ENGINE_S = 2.0
"""The part of a time-out that is kept for the engine: these seconds, or a quarter of it."""
_DTYPES = {
    "BIGINT": "Int64", "INTEGER": "Int64", "UBIGINT": "UInt64", "DOUBLE": "float64",
    "BOOLEAN": "boolean", "VARCHAR": "object",
}  # fmt: skip
_ARROW_TYPES = {
    "BIGINT": "int64", "INTEGER": "int32", "UBIGINT": "uint64", "DOUBLE": "float64",
    "BOOLEAN": "bool", "VARCHAR": "string",
}  # fmt: skip


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query.

    Attributes:
        columns: the names of the columns.
        types: DuckDB's names of their types.
        rows: a tuple for each row.
        missing: rows that the tables lack, because a host or a rank did not answer. The result is
            partial if there are any.
        dropped: rows of the history that the query may have asked for and that made room for newer
            ones, by table and process. A condition on `timestamp_us` that leaves them out, leaves
            them out here too.
        not_kept: tables of the history that have no rows here because no process keeps history.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    missing: tuple[MissingRows, ...] = ()
    dropped: tuple[DroppedRows, ...] = ()
    not_kept: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts by the name of the column; of equal names the last counts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @property
    def missing_lines(self) -> list[str]:
        """The missing parts, for people: a line for each table and reason."""
        return missing_lines(self.missing)

    @property
    def dropped_lines(self) -> list[str]:
        """Rows of the past that are not there, for people.

        A line for each table and mesh with dropped rows, and one for tables that are not kept.
        """
        return [*dropped_lines(self.dropped), *not_kept_lines(self.not_kept)]

    def csv(self) -> str:
        """The rows as CSV, below a line with the names of the columns.

        NULL is an empty field, and an empty text is `""`. Values other than numbers and texts are
        written as in JSON.
        """
        return csv_text(self.columns, self.rows)

    def df(self) -> Any:
        """The rows as a pandas DataFrame; integers and booleans in types that can be missing.

        `attrs` has `missing` and `dropped`, as this result.

        Raises:
            QueryError: pandas is not installed.
        """
        try:
            pandas: Any = import_module("pandas")
        except ModuleNotFoundError as error:
            if error.name != "pandas":
                raise
            raise QueryError(
                "a DataFrame needs pandas, which is not installed; pip install pandas, or use "
                "`rows` and `columns`"
            ) from None
        # By position: two columns may have one name. Integers keep their digits beside NULLs.
        series = {
            at: pandas.Series([row[at] for row in self.rows], dtype=_DTYPES.get(kind))
            for at, kind in enumerate(self.types)
        }
        frame = pandas.DataFrame(series)
        frame.columns = list(self.columns)
        frame.attrs["missing"], frame.attrs["dropped"] = self.missing, self.dropped
        return frame

    def arrow(self) -> Any:
        """The rows as a `pyarrow.Table`.

        Columns of numbers, texts and truth values have the types of the query, also without rows;
        Arrow finds the type of any other column from its values.

        Raises:
            QueryError: pyarrow is not installed.
        """
        pyarrow = pyarrow_module()
        columns = [
            pyarrow.array([row[at] for row in self.rows], type=_ARROW_TYPES.get(kind))
            for at, kind in enumerate(self.types)
        ]
        return pyarrow.Table.from_arrays(columns, names=list(self.columns))

    def __str__(self) -> str:
        lines = table_lines(self, MOST_SHOWN)
        return "\n".join([*lines, *self.missing_lines, *self.dropped_lines])


def query(sql: str, timeout: float | None = None) -> QueryResult:
    """Run a SELECT over the tables of this session's live state; needs the extra `sql`.

    The tables that the query names are collected from all hosts while it runs, and each host sends
    the rows and columns that the query needs. Without a session the tables are empty.

    Args:
        sql: one query in DuckDB's dialect. It can read the tables and nothing else: no files, no
            variables of the program.
        timeout: seconds for the whole query. At least half of them are for hosts and ranks; rows
            of those that have not answered by then are `missing`. None: 2 s for ranks, 30 for
            idle ones and for stacks (`frames`), and as long as the engine takes.

    Raises:
        QueryError: DuckDB refuses the query, it is not one SELECT, it needs more than 2 GB of
            memory, or DuckDB is not installed.
        QueryTimeoutError: it has not ended within the time-out.
        ValueError: a negative, infinite or NaN time-out.
        KeyboardInterrupt: an interrupt ends the query, whatever the engine computes.
    """
    run = runtime_or_none()
    return run_query(sql, timeout, lambda needs, seconds: collect_here(run, needs, seconds))


def run_query(
    sql: str,
    timeout: float | None,
    collect: Collect,
    most: int | None = None,
    engine_s: float = inf,
) -> QueryResult:
    """Run a query over the tables that it needs, whose rows `collect` returns.

    Args:
        engine_s: the longest time for the engine; within `timeout`, if there is one.

    Raises:
        QueryError: as `query`, and if the answer has more than `most` rows.
    """
    check_timeout(timeout)
    deadline = inf if timeout is None else time.monotonic() + timeout
    try:
        needs = call_engine(find_needs, sql, deadline=min(deadline, time.monotonic() + engine_s))
        collected = Collected()
        if needs:
            seconds = None if timeout is None else collection_s(timeout, deadline)
            collected = collect(needs, seconds)
        not_kept = _not_kept(needs, collected, collect, deadline)
        answer = call_engine(
            run_on, sql, collected.tables, most,
            deadline=min(deadline, time.monotonic() + engine_s),
        )  # fmt: skip
    except QueryTimeoutError:
        raise timed_out(engine_s if timeout is None else min(timeout, engine_s)) from None
    return QueryResult(
        answer.columns, answer.types, answer.rows, tuple(collected.missing),
        tuple(sorted(collected.dropped, key=lambda one: (one.table, one.where))), not_kept,
    )  # fmt: skip


def _not_kept(
    needs: Mapping[str, Need], collected: Collected, collect: Collect, deadline: float
) -> tuple[str, ...]:
    """The tables of the past without rows, if there is no history in any process."""
    empty = [name for name in sorted(PAST.intersection(needs)) if not collected.has_rows(name)]
    if not empty or collected.missing:
        return ()
    seconds = min(KEPT_S, (deadline - time.monotonic()) / 4)
    kept = collect({RECORDINGS.name: Need(("name",))}, max(0.0, seconds))
    return () if kept.missing or kept.has_rows(RECORDINGS.name) else tuple(empty)


def check_timeout(timeout: float | None) -> None:
    """Raises ValueError: a negative, infinite or NaN time-out."""
    if timeout is not None and not 0 <= timeout < inf:  # NaN is neither
        raise ValueError(f"timeout={timeout}: give seconds, at least 0 and finite, or None")


def collection_s(timeout: float, deadline: float) -> float:
    """The seconds for the answers of hosts; the rest of the time-out is for the engine."""
    return max(0.0, deadline - time.monotonic() - min(ENGINE_S, timeout / 4))


def timed_out(seconds: float) -> QueryTimeoutError:
    """The error of a query that has not ended in time."""
    return QueryTimeoutError(
        f"the query did not end within {seconds:g} s; add conditions or a LIMIT, or give it longer"
    )


class QueryEngineClient:
    """Queries the session of this process, with the signature of Monarch's client.

    The dialect is DuckDB's, and nothing has to be switched on.
    """

    def query(self, sql: str, timeout: float | None = None) -> dict[str, list[dict[str, Any]]]:
        """The rows of a query as `{"rows": [{column: value}]}`; see `monarch.observe.query`.

        If the history has dropped rows that the query asks for, the dict also has `dropped`, with
        the fields of `QueryResult.dropped`.

        Raises:
            QueryError: the query is refused or fails.
            TimeoutError: the query has not ended in time; or rows are missing, because a host or
                rank has not answered; names them.
        """
        found = query(sql, timeout)
        if found.missing:
            raise TimeoutError("; ".join(found.missing_lines))
        answer = {"rows": found.dicts()}
        if found.dropped:
            answer["dropped"] = [asdict(one) for one in found.dropped]
        return answer


class QueryEngine:
    """Queries the session of this process, with the signature of Monarch's `QueryEngine`.

    Answers are Arrow tables, for which pyarrow must be installed. The dialect is DuckDB's.

    Args:
        actor: has no effect. In Monarch it is the actor that collects the tables; here host agents
            and processes answer themselves.
    """

    def __init__(self, actor: object = None) -> None:
        del actor

    def query(self, sql: str) -> Any:
        """The rows of a query as a `pyarrow.Table`; see `monarch.observe.query`.

        Raises:
            QueryError: the query is refused or fails, or pyarrow is not installed.
            TimeoutError: rows are missing, because a host or rank has not answered; names them.
        """
        pyarrow_module()  # before hosts are asked
        found = query(sql)
        if found.missing:
            raise TimeoutError("; ".join(found.missing_lines))
        return found.arrow()

    def query_stream(self, sql: str) -> Any:
        """The same rows as a `pyarrow.RecordBatchReader`. The query has run when this returns.

        Raises:
            QueryError, TimeoutError: as `query`.
        """
        return self.query(sql).to_reader()


def pyarrow_module() -> Any:
    """The package `pyarrow`.

    Raises:
        QueryError: it is not installed.
    """
    try:
        return import_module("pyarrow")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise QueryError(
            "an Arrow table needs pyarrow, which is not installed; pip install pyarrow, or use "
            "`query_engine_client`, whose answers are dicts"
        ) from None


def query_tables() -> dict[str, dict[str, str]]:
    """The names of the tables that `query` reads, each with its columns and their types."""
    return {
        name: {column.name: column.type for column in table.columns}
        for name, table in {**TABLES, **VIEWS}.items()
    }


# --- as text --------------------------------------------------------------------------------------


def cell_text(cell: object) -> str:
    """A value in a table; NULL for None."""
    return "NULL" if cell is None else str(cell)


def table_lines(result: QueryResult, most: int | None = None) -> list[str]:
    """The rows as lines of aligned columns, and their number. `most`: the number of rows shown."""
    shown = result.rows if most is None else result.rows[:most]
    cells = [list(result.columns), *([cell_text(cell) for cell in row] for row in shown)]
    cells = [[" ".join(cell.splitlines()) for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = [_is_number([row[at] for row in shown]) for at in range(len(result.columns))]
    lines: list[str] = []
    for row in cells:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    count = len(result.rows)
    more = f", {count - len(shown)} not shown" if len(shown) < count else ""
    return [*lines, f"({count} row{'s' * (count != 1)}{more})"]


def _is_number(column: Sequence[object]) -> bool:
    known = [cell for cell in column if cell is not None]
    return bool(known) and all(isinstance(cell, (int, float)) for cell in known)


_QUOTED = frozenset(',"\r\n')


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A line of names, and a line for each row.

    NULL is an empty field, and an empty text is `""`. Values other than numbers and texts are
    written as in JSON: true, 2026-01-02T03:04:05, "[1, null]".
    """
    lines = [",".join(map(_quoted, columns))]
    lines += [",".join(map(_field, row)) for row in rows]
    return "\n".join(lines) + "\n"


def _field(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return _quoted(cell)
    if isinstance(cell, float):
        return repr(cell)  # also NaN and infinities, which JSON has not
    text = msgspec.json.encode(cell, enc_hook=str).decode()
    return _quoted(msgspec.json.decode(text, type=str) if text.startswith('"') else text)


def _quoted(text: str) -> str:
    if text and not _QUOTED.intersection(text):
        return text
    return '"' + text.replace('"', '""') + '"'
