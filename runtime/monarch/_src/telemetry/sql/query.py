"""`query`: SQL over the live state of this session.

Runs in: a client or a rank, on the calling thread, which waits for agents and then runs the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf
from typing import Any, TypeAlias

from monarch._src.actor.runtime import runtime_or_none
from monarch._src.errors import QueryError
from monarch._src.telemetry.sql.collect import Collected, MissingRows, collect_here
from monarch._src.telemetry.sql.engine import engine
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.telemetry.sql.state.schema import TABLES
from monarch._src.telemetry.sql.state.views import VIEWS

Collect: TypeAlias = "Callable[[Mapping[str, Need], float | None], Collected]"
MOST_SHOWN = 40
_DTYPES = {
    "BIGINT": "Int64", "INTEGER": "Int64", "UBIGINT": "UInt64", "DOUBLE": "float64",
    "BOOLEAN": "boolean", "VARCHAR": "object",
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
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    missing: tuple[MissingRows, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts by the name of the column; of equal names the last counts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def df(self) -> Any:
        """The rows as a pandas DataFrame; integers and booleans in types that can be missing.

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
        return frame

    def __str__(self) -> str:
        return "\n".join([*table_lines(self, MOST_SHOWN), *missing_lines(self)])


def query(sql: str, timeout: float | None = None) -> QueryResult:
    """Run a SELECT over the tables of this session's live state; needs the extra `sql`.

    The tables that the query names are collected from all hosts while it runs, and each host sends
    the rows and columns that the query needs. Without a session the tables are empty.

    Args:
        sql: one query in DuckDB's dialect. It can read the tables and nothing else: no files, no
            variables of the program.
        timeout: seconds to wait for ranks; None: 2, and 30 for stacks (`frames`). Rows of hosts and
            ranks that have not answered are `missing`.

    Raises:
        QueryError: DuckDB refuses the query, it is not one SELECT, or DuckDB is not installed.
        ValueError: a negative, infinite or NaN time-out.
    """
    run = runtime_or_none()
    return run_query(sql, timeout, lambda needs, seconds: collect_here(run, needs, seconds))


def run_query(
    sql: str, timeout: float | None, collect: Collect, most: int | None = None
) -> QueryResult:
    """Run a query over the tables that it needs, whose rows `collect` returns.

    Raises:
        QueryError: as `query`, and if the answer has more than `most` rows.
    """
    if timeout is not None and not 0 <= timeout < inf:  # NaN is neither
        raise ValueError(f"timeout={timeout}: give seconds, at least 0 and finite, or None")
    found = engine()
    needs = found.needs(sql)
    collected = collect(needs, timeout) if needs else Collected()
    answer = found.run(sql, collected.tables, most)
    return QueryResult(answer.columns, answer.types, answer.rows, tuple(collected.missing))


class QueryEngineClient:
    """Queries the session of this process, with the signature of Monarch's client.

    The dialect is DuckDB's, and nothing has to be switched on.
    """

    def query(self, sql: str, timeout: float | None = None) -> dict[str, list[dict[str, Any]]]:
        """The rows of a query as `{"rows": [{column: value}]}`; see `monarch.observe.query`.

        Raises:
            QueryError: the query is refused or fails.
            TimeoutError: rows are missing, because a host or rank has not answered; names them.
        """
        found = query(sql, timeout)
        if found.missing:
            raise TimeoutError("; ".join(missing_lines(found)))
        return {"rows": found.dicts()}


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


def missing_lines(result: QueryResult) -> list[str]:
    """A line for each kind of rows that are missing."""
    return [f"missing rows of {missing}" for missing in result.missing]
