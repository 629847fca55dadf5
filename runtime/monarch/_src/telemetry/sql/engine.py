"""The query engine: DuckDB, in memory.

Runs in: a process of its own (`engine_process`), on its main thread.
Owns: one connection for the process, with an empty table for each table of the schema.
Invariants: a query runs in a transaction that is rolled back, so the tables are empty again after
it. The connection can neither read nor write files, nor load extensions, nor see Python variables,
and its configuration is locked: SQL cannot change that. It has no threads of its own.

A table is loaded as one text, which DuckDB splits into rows and cells and casts: 0.3 us a cell, as
from numpy, where binding lists costs 3.6 us and inserting a row 400 us. So it needs neither numpy
nor an Arrow package.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf
from typing import Any, NamedTuple

from monarch._src.errors import QueryError
from monarch._src.telemetry.sql.state.pushdown import Need, RefusedQueryError, needs_of
from monarch._src.telemetry.sql.state.schema import ATTRIBUTES, TABLES, Table
from monarch._src.telemetry.sql.state.views import VIEWS, view_definition
from monarch._src.wire.table_codec import Cell

INSTALL = "pip install 'monarch-jupyter[sql]'"
MEMORY_MB = 2000
"""The memory of a query, in megabytes; nothing is spilled to disk."""
SPARE_BYTES = 4 << 20
BATCH = 1024
"""The number of rows that are converted at a time; the memory is looked at before each."""
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_MISSING = re.compile(r'Referenced column "([^"]+)" not found')
_WORD = re.compile(rb"\w+")
_FIRST_MARK = 0xE000  # of the private use area of Unicode, which text rarely has


@dataclass(frozen=True)
class ResultRows:
    """The result of a query: its columns with DuckDB's types, and its rows."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class Engine:
    """The engine of one process."""

    def __init__(self, memory_mb: int = MEMORY_MB) -> None:
        """An empty database with all tables and views, and the limits of a query.

        Raises:
            QueryError: DuckDB is not installed.
        """
        self.memory_mb = memory_mb
        self._duckdb = duckdb_module()
        self._connection: Any = self._duckdb.connect(":memory:", config={"threads": "1"})
        self._connection.execute(";".join(map(definition, TABLES.values())))
        self._connection.execute(";".join(map(view_definition, VIEWS.values())))
        restrict(self._connection, memory_mb)

    def needs(self, sql: str) -> dict[str, Need]:
        """The needs of a query, by the name of the table.

        Raises:
            QueryError: the text is not one SELECT, or names a table or column that does not exist.
        """
        with refusals(self._duckdb):
            check_select(self._duckdb, sql)
            (text,) = self._connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
            needs = self._parsed_needs(json.loads(text))
            try:
                self._bind(sql)
            except self._duckdb.BinderException as error:
                raise QueryError(f"{str(error).strip()}{_remedy(str(error), needs)}") from None
        return needs

    def _parsed_needs(self, tree: dict[str, Any]) -> dict[str, Need]:
        if tree["error"]:
            raise QueryError(f"this query cannot be run here: {tree['error_message']}")
        try:
            return needs_of(tree["statements"][0], TABLES, VIEWS)
        except RefusedQueryError as error:
            raise QueryError(str(error)) from None

    def _bind(self, sql: str) -> None:
        """Resolve the names of a query without running it: a wrong name costs no host an answer."""
        try:
            self._connection.sql(sql)
        except self._duckdb.Error:
            self._connection.execute(sql).fetchall()  # fails in the same way, and says where
            raise

    def run(
        self,
        sql: str,
        tables: Mapping[str, Mapping[str, Sequence[Cell]]],
        most: int | None = None,
    ) -> ResultRows:
        """Run a query on these tables, which are given by columns; other columns are NULL.

        Raises:
            QueryError: DuckDB refuses it, it fails, or it has more than `most` rows.
            MemoryError: it needs more memory than it may have.
        """
        connection = self._connection
        connection.execute("BEGIN")
        try:
            with refusals(self._duckdb):
                for name, columns in tables.items():
                    load(connection, name, TABLES[name], columns)
                return fetched(connection.execute(sql), most)
        finally:
            connection.execute("ROLLBACK")


def fetched(cursor: Any, most: int | None = None) -> ResultRows:
    """All rows of a cursor of DuckDB.

    Raises:
        QueryError: they are more than `most`.
    """
    rows: list[tuple[Any, ...]] = []
    while most is None or len(rows) <= most:
        # DuckDB's conversion crashes where Python has no memory, so there is some left for it.
        if _data_bytes() > _most_bytes - SPARE_BYTES:
            raise MemoryError
        batch: list[tuple[Any, ...]] = cursor.fetchmany(BATCH)
        rows += batch
        if len(batch) < BATCH:
            break
    if most is not None and len(rows) > most:
        raise QueryError(f"the answer has more than {most} rows; add a LIMIT or conditions")
    described = cursor.description or ()
    names = tuple(str(column[0]) for column in described)
    return ResultRows(names, tuple(str(column[1]) for column in described), tuple(rows))


def load(connection: Any, target: str, table: Table, columns: Mapping[str, Sequence[Cell]]) -> None:
    """Insert rows, given by columns, into `target`, which has the columns of `table`."""
    given = [column for column in table.columns if column.name in columns]
    if not given or not columns[given[0].name]:
        return
    text, marks = joined([columns[column.name] for column in given])
    names = ", ".join(f'"{column.name}"' for column in given)
    cells = ", ".join(
        f"CAST(nullif(cells[{number}], chr({marks.null})) AS {column.type})"
        for number, column in enumerate(given, 1)
    )
    rows = f"unnest(string_split($1, chr({marks.row})))"
    connection.execute(
        f"INSERT INTO {target} ({names}) SELECT {cells} "
        f"FROM (SELECT string_split({rows}, chr({marks.cell})) AS cells)",
        [text],
    )


def duckdb_module() -> Any:
    """The package `duckdb`.

    Raises:
        QueryError: it is not installed.
    """
    try:
        return import_module("duckdb")
    except ModuleNotFoundError as error:
        if error.name != "duckdb":
            raise
        raise QueryError(f"queries need DuckDB, which is not installed; {INSTALL}") from None


@contextlib.contextmanager
def refusals(duckdb: Any) -> Generator[None]:
    """Raise DuckDB's errors as QueryError with its text, and its want of memory as MemoryError."""
    try:
        yield
    except duckdb.OutOfMemoryException:
        raise MemoryError from None
    except duckdb.Error as error:
        raise QueryError(str(error).strip()) from None


def _remedy(text: str, tables: Collection[str]) -> str:
    """A line to add to the text of DuckDB if an attribute was taken for a column; or nothing."""
    missing = _MISSING.search(text)
    if missing is None or ATTRIBUTES.name not in tables:
        return ""
    return (
        "\n`attributes` has a row for each attribute of an actor; write "
        f"SELECT text FROM attributes WHERE name = '{missing[1]}'"
    )


def restrict(connection: Any, memory_mb: int) -> None:
    """Leave a connection its tables and this much memory, for good."""
    for setting in (
        f"memory_limit = '{memory_mb}MB'", "temp_directory = ''",
        "python_enable_replacements = false", "enable_external_access = false",
        "enable_progress_bar = false",
        "lock_configuration = true",
    ):  # fmt: skip
        connection.execute(f"SET {setting}")


def check_select(duckdb: Any, sql: str) -> None:
    """Check that the text is one SELECT without parameters.

    Raises:
        QueryError: it is something else. duckdb.Error: it cannot be parsed.
    """
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        # DuckDB 1 makes two statements of a PIVOT, without their text.
        if statements and not statements[0].query:
            raise QueryError(_refusal(_keywords(duckdb, sql)))
        if not statements:
            raise QueryError("the text has no query; give one, such as SELECT * FROM procs")
        raise QueryError(f"give one query, not {len(statements)}")
    if not _is_select(duckdb, statements[0]):
        raise QueryError(_refusal(_keywords(duckdb, sql)))
    if statements[0].named_parameters:
        raise QueryError("a query here has no parameters; write the values into it")


def _is_select(duckdb: Any, statement: Any) -> bool:
    try:
        return statement.type == duckdb.StatementType.SELECT
    except ValueError:  # a type that the package has no name for
        return False


def _refusal(keywords: Sequence[str]) -> str:
    """Why a statement that is no SELECT is not run, in words of its text."""
    if "PIVOT" in keywords:  # its first step makes a type
        return (
            "PIVOT is run here with the values of its column only, such as "
            "PIVOT procs ON state IN ('idle', 'busy') USING count(*)"
        )
    kind = keywords[0] if keywords else "this"
    if kind == "WITH":  # a change follows it
        kind = next((word for word in keywords if word in _CHANGES), kind)
    return f"only SELECT, SHOW, DESCRIBE and SUMMARIZE are run here, not {kind}"


def _keywords(duckdb: Any, sql: str) -> list[str]:
    """The keywords of a text, in capitals, without those of comments and of quoted names."""
    text = sql.encode()  # positions count bytes
    found = (
        _WORD.match(text, position)
        for position, kind in duckdb.tokenize(sql)
        if kind == duckdb.token_type.keyword
    )
    return [word.group().decode().upper() for word in found if word is not None]


def definition(table: Table) -> str:
    """The statement that makes an empty table."""
    columns = ", ".join(f'"{column.name}" {column.type}' for column in table.columns)
    return f"CREATE TABLE {table.name} ({columns})"


class Marks(NamedTuple):
    """The codes of signs that separate rows and cells, and that stand for NULL."""

    row: int
    cell: int
    null: int


def joined(columns: Sequence[Sequence[Cell]]) -> tuple[str, Marks]:
    """The rows of these columns as one text, and the marks in it, which occur in no cell.

    Text that is no Unicode gets backslashes.
    """
    texts = [[None if cell is None else _text(cell) for cell in column] for column in columns]
    marks = _unused("".join(cell for column in texts for cell in column if cell is not None))
    null, between = chr(marks.null), chr(marks.cell)
    whole = ([null if cell is None else cell for cell in column] for column in texts)
    return chr(marks.row).join(map(between.join, zip(*whole, strict=True))), marks


def _text(cell: Cell) -> str:
    text = str(cell)
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _unused(text: str) -> Marks:
    """Three signs that do not occur in the text."""
    codes = itertools.chain((0x1D, 0x1F, 0x1E), range(_FIRST_MARK, 0xF900), range(0xF0000, 0xFFFFE))
    return Marks(*itertools.islice((code for code in codes if chr(code) not in text), 3))


_engine: Engine | None = None
_most_bytes: float = inf
_FIRST = "SELECT count(*) FROM procs"
_statm: int | None = None  # the descriptor of a file of /proc, on Linux
_PAGE = resource.getpagesize()


def start_engine(memory_mb: int) -> None:
    """Make the engine of this process, and bound the memory of the process from now on.

    Raises:
        QueryError: DuckDB is not installed.
    """
    global _engine, _most_bytes, _statm
    _engine = Engine(memory_mb)
    _engine.needs(_FIRST)  # DuckDB maps 80 MB at once, which no query is charged for
    _engine.run(_FIRST, {})
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        _statm = os.open("/proc/self/statm", os.O_RDONLY)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        _most_bytes = _data_bytes() + memory_mb * 1_000_000
        if hard != resource.RLIM_INFINITY:
            _most_bytes = min(_most_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (int(_most_bytes), hard))


def _data_bytes() -> int:
    """The size of this process's private writable memory, which RLIMIT_DATA bounds; 0 if unknown.

    That is what DuckDB allocates, also beside its own accounts, and what Python allocates.
    """
    if _statm is None:
        return 0
    return int(os.pread(_statm, 256, 0).split()[5]) * _PAGE


def engine() -> Engine:
    """The engine of this process, after `start_engine`."""
    assert _engine is not None, "queries run in the engine's process"
    return _engine


def find_needs(sql: str) -> dict[str, Need]:
    """`Engine.needs` of this process's engine."""
    return engine().needs(sql)


def run_on(
    sql: str, tables: Mapping[str, Mapping[str, Sequence[Cell]]], most: int | None
) -> ResultRows:
    """`Engine.run` of this process's engine."""
    return engine().run(sql, tables, most)
