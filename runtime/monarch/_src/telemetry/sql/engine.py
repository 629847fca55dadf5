"""The query engine: DuckDB, in memory, in the process that runs the query.

Runs in: a client, an observer or a notebook; any thread. Loaded with the first query.
Owns: one connection for the process, with an empty table for each table of the schema.
Invariants: a query runs in a transaction that is rolled back, so the tables are empty again after
it. The connection can neither read nor write files, nor load extensions, nor see Python variables,
and its configuration is locked: SQL cannot change that. It has no threads of its own.

A table is loaded as one text, which DuckDB splits into rows and cells and casts: 0.3 us a cell, as
from numpy, where binding lists costs 3.6 us and inserting a row 400 us. So it needs neither numpy
nor an Arrow package.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from monarch._src.errors import QueryError
from monarch._src.telemetry.sql.state.pushdown import Need, RefusedQueryError, needs_of
from monarch._src.telemetry.sql.state.schema import TABLES, Table
from monarch._src.telemetry.sql.state.views import VIEWS, view_definition
from monarch._src.wire.table_codec import Cell

INSTALL = "pip install 'monarch-jupyter[sql]'"
MEMORY = "2GB"
"""The memory limit of a query; nothing is spilled to disk."""
SETTINGS = (
    f"SET memory_limit = '{MEMORY}'",
    "SET temp_directory = ''",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_WORD = re.compile(rb"\w+")
_FIRST_MARK = 0xE000  # of the private use area of Unicode, which text rarely has


@dataclass(frozen=True)
class Answer:
    """The result of a query: its columns with DuckDB's types, and its rows."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class Engine:
    """The engine of one process."""

    def __init__(self) -> None:
        """Raises:
        QueryError: DuckDB is not installed.
        """
        self._duckdb = duckdb_module()
        self._lock = threading.Lock()  # a connection runs one query at a time
        self._connection: Any = self._duckdb.connect(":memory:", config={"threads": "1"})
        self._connection.execute(";".join(map(definition, TABLES.values())))
        self._connection.execute(";".join(map(view_definition, VIEWS.values())))
        for setting in SETTINGS:
            self._connection.execute(setting)

    def needs(self, sql: str) -> dict[str, Need]:
        """The needs of a query, by the name of the table.

        Raises:
            QueryError: the text is not one SELECT, or names a table or column that does not exist.
        """
        duckdb = self._duckdb
        with self._lock:
            try:
                check_select(duckdb, sql)
                (text,) = self._connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
                needs = self._parsed_needs(json.loads(text))
                self._bind(sql)
            except duckdb.Error as error:
                raise QueryError(str(error).strip()) from None
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
    ) -> Answer:
        """Run a query on these tables, which are given by columns; other columns are NULL.

        Raises:
            QueryError: DuckDB refuses it, it fails, or it has more than `most` rows.
        """
        duckdb, connection = self._duckdb, self._connection
        with self._lock:
            connection.execute("BEGIN")
            try:
                for name, columns in tables.items():
                    self._load(TABLES[name], columns)
                cursor = connection.execute(sql)
                rows: list[tuple[Any, ...]] = (
                    cursor.fetchall() if most is None else cursor.fetchmany(most + 1)
                )
                described = cursor.description or ()
            except duckdb.Error as error:
                raise QueryError(str(error).strip()) from None
            finally:
                connection.execute("ROLLBACK")
        if most is not None and len(rows) > most:
            raise QueryError(f"the answer has more than {most} rows; add a LIMIT or conditions")
        names = tuple(str(column[0]) for column in described)
        return Answer(names, tuple(str(column[1]) for column in described), tuple(rows))

    def interrupt(self) -> None:
        """Make the query that runs now fail. Any thread may call it; without a query it is lost."""
        self._connection.interrupt()

    def _load(self, table: Table, columns: Mapping[str, Sequence[Cell]]) -> None:
        load(self._connection, table.name, table, columns)


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


def check_select(duckdb: Any, sql: str) -> None:
    """Check that the text is one SELECT without parameters.

    Raises:
        QueryError: it is something else. duckdb.Error: it cannot be parsed.
    """
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
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
    if "PIVOT" in keywords:  # two statements for DuckDB, and the first one makes a type
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
_making = threading.Lock()


def engine() -> Engine:
    """The engine of this process, made on first use.

    Raises:
        QueryError: DuckDB is not installed.
    """
    global _engine
    with _making:
        if _engine is None:
            _engine = Engine()
        return _engine
