"""Rows of a table: those that meet the conditions of a request, cut to its columns. No I/O.

A row has a cell for each sent column of its table, in that order.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from monarch._src.telemetry.sql.state.schema import Table
from monarch._src.wire.messages import Condition, ReadTable, TableRead
from monarch._src.wire.table_codec import Cell, packed

Row: TypeAlias = "Sequence[Cell]"

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = frozenset({*_COMPARE, "in"})
MOST_BYTES = 12 << 20
"""The maximal size of the columns of one answer; the head of a message has up to 16 MiB."""


def problem_of(table: Table | None, request: ReadTable) -> str:
    """Why the request cannot be answered; empty if it can."""
    if table is None:
        return f"there is no table {request.table!r}"
    if not request.columns:
        return "the request names no columns"
    known = {column.name: column.type for column in table.sent}
    for name in (*request.columns, *(condition.column for condition in request.conditions)):
        if name not in known:
            return f"table {table.name} has no column {name!r} here"
    for condition in request.conditions:
        if condition.operator not in OPERATORS:
            return f"there is no operator {condition.operator!r}"
        if not condition.values or (condition.operator != "in" and len(condition.values) > 1):
            return f"{condition.operator} compares with {len(condition.values)} values"
        is_text = known[condition.column] == "VARCHAR"
        if known[condition.column] == "BOOLEAN" or any(
            isinstance(value, str) != is_text for value in condition.values
        ):
            return f"{condition.column} is {known[condition.column]}, compared with another type"
    return ""


def meets(cell: Cell, condition: Condition) -> bool:
    """Whether a cell meets a condition; NULL meets none."""
    if cell is None:
        return False
    if condition.operator == "in":
        return cell in condition.values
    return _COMPARE[condition.operator](cell, condition.values[0])


def place_meets(
    table: Table, conditions: Iterable[Condition], mesh_id: int, mesh: str, rank: int
) -> bool:
    """Whether rows of that process may meet the conditions, by its place alone."""
    place = table.place
    if place is None:
        return True
    cells: dict[str, Cell] = {place.mesh_id: mesh_id, place.mesh: mesh, place.rank: rank}
    return all(
        meets(cells[condition.column], condition)
        for condition in conditions
        if condition.column in cells
    )


def selected(table: Table, request: ReadTable, rows: Iterable[Row]) -> list[list[Cell]]:
    """The columns of the request, of the rows that it wants."""
    for condition in request.conditions:
        rows = _meeting(rows, table.index(condition.column), condition)
    wanted = list(rows if request.limit < 0 else itertools.islice(rows, request.limit))
    # A column at a time takes half as long as a row at a time.
    return [[row[index] for row in wanted] for index in map(table.index, request.columns)]


def _meeting(rows: Iterable[Row], index: int, condition: Condition) -> Iterable[Row]:
    """The rows whose cell at that index meets a condition."""
    return (row for row in rows if meets(row[index], condition))


def wants_before(request: ReadTable, time_us: int) -> bool:
    """Whether the request may want rows from before that time, by conditions on `timestamp_us`."""
    return not any(
        condition.column == "timestamp_us"
        and condition.operator in (">", ">=", "=", "in")
        and all(isinstance(value, int) and value >= time_us for value in condition.values)
        for condition in request.conditions
    )


def answer(
    table: Table,
    request: ReadTable,
    rows: Iterable[Row],
    site: str = "",
    missing: Sequence[tuple[str, str]] = (),
    problem: str = "",
    most_bytes: int = MOST_BYTES,
) -> TableRead:
    """The answer to a request with these rows; the last rows are left out if they do not fit."""
    columns = selected(table, request, rows)
    count = whole = len(columns[0])
    data = packed(columns)
    while len(data) > most_bytes:
        count //= 2
        columns = [column[:count] for column in columns]
        data = packed(columns)
    return TableRead(
        request.request, site, count, data, list(missing), whole - count, problem
    )  # fmt: skip
