"""An agent answers a request for rows exactly, and refuses one that makes no sense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from monarch._src.telemetry.sql.state.rows import Row, answer, place_meets, problem_of
from monarch._src.telemetry.sql.state.schema import CALLS, LOG_LINES, MESHES, PROCS, TABLES
from monarch._src.wire.messages import Condition, ReadTable, TableRead
from monarch._src.wire.table_codec import unpacked

COLUMNS = ["number", "rank", "text"]
LINES: list[Row] = [
    (1, 100, 7, "workers", 0, "stdout", "a"),
    (2, 110, 7, "workers", 1, "stderr", "b"),
    (3, 120, 8, "others", 0, "stdout", None),
    (4, 130, 8, "others", 1, "stdout", "d"),
]


def request(
    *conditions: Condition, columns: list[str] = COLUMNS, limit: int = -1, table: str = "log_lines"
) -> ReadTable:
    return ReadTable(1, table, columns, list(conditions), limit, 1.0)


def rows(found: TableRead, columns: int = len(COLUMNS)) -> list[tuple[object, ...]]:
    return list(zip(*unpacked(found.columns, columns, found.count), strict=True))


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ([], [1, 2, 3, 4]),
        ([Condition("rank", "=", [1])], [2, 4]),
        ([Condition("rank", "!=", [1])], [1, 3]),
        ([Condition("number", "<", [3])], [1, 2]),
        ([Condition("number", "<=", [3])], [1, 2, 3]),
        ([Condition("number", ">", [3])], [4]),
        ([Condition("number", ">=", [3])], [3, 4]),
        ([Condition("mesh", "in", ["others", "x"])], [3, 4]),
        ([Condition("mesh", "=", ["others"]), Condition("rank", "=", [0])], [3]),
        ([Condition("text", "!=", ["a"])], [2, 4]),  # NULL is not unequal either
        ([Condition("text", "in", ["zzz"])], []),
    ],
)
def test_only_rows_that_meet_all_conditions_are_sent(
    conditions: list[Condition], numbers: list[int]
) -> None:
    found = answer(LOG_LINES, request(*conditions), LINES, "site")
    assert [row[0] for row in rows(found)] == numbers
    assert (found.request, found.site, found.count) == (1, "site", len(numbers))


def test_only_the_columns_that_were_asked_for_are_sent_in_their_order() -> None:
    found = answer(LOG_LINES, request(columns=["text", "number"]), LINES[:2])
    assert rows(found, 2) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (9, 2), (-1, 2)])
def test_a_limit_counts_the_rows_that_meet_the_conditions(limit: int, count: int) -> None:
    found = answer(LOG_LINES, request(Condition("rank", "=", [1]), limit=limit), LINES)
    assert found.count == count
    assert [row[0] for row in rows(found)] == [2, 4][:count]


def test_rows_that_do_not_fit_are_left_out_and_counted() -> None:
    many: list[Row] = [(n, 1, 7, "workers", 0, "stdout", f"line {n}" * 20) for n in range(64)]
    found = answer(LOG_LINES, request(), many, most_bytes=4000)
    assert 0 < found.count < 64
    assert found.count + found.dropped == 64
    assert len(found.columns) <= 4000
    assert [row[0] for row in rows(found)] == list(range(found.count))


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (request(table="procs", columns=["nope"]), "table procs has no column 'nope' here"),
        (request(table="procs", columns=["host"]), "table procs has no column 'host' here"),
        (request(table="procs", columns=[]), "the request names no columns"),
        (
            request(Condition("nope", "=", [1]), table="procs", columns=["rank"]),
            "table procs has no column 'nope' here",
        ),
        (
            request(Condition("rank", "~", [1]), table="procs", columns=["rank"]),
            "there is no operator '~'",
        ),
        (
            request(Condition("rank", "=", [1, 2]), table="procs", columns=["rank"]),
            "= compares with 2 values",
        ),
        (
            request(Condition("rank", "in", []), table="procs", columns=["rank"]),
            "in compares with 0 values",
        ),
        (
            request(Condition("rank", "=", ["1"]), table="procs", columns=["rank"]),
            "rank is BIGINT, not what it is compared with",
        ),
        (
            request(Condition("mesh", "<", [1]), table="procs", columns=["rank"]),
            "mesh is VARCHAR, not what it is compared with",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_the_reason(
    asked: ReadTable, problem: str
) -> None:
    assert problem_of(PROCS, asked) == problem


def test_a_request_for_an_unknown_table_is_refused() -> None:
    assert problem_of(None, request(table="nope")) == "there is no table 'nope'"


def test_a_request_that_makes_sense_is_not_refused() -> None:
    assert problem_of(LOG_LINES, request(Condition("rank", "in", [1, 2]))) == ""


def test_a_process_is_asked_unless_its_place_excludes_it() -> None:
    conditions = [Condition("caller_rank", ">", [1]), Condition("rank", "=", [0])]
    asked = [rank for rank in range(4) if place_meets(CALLS, conditions, 7, "workers", rank)]
    assert asked == [2, 3]
    assert not place_meets(CALLS, [Condition("caller_mesh", "=", ["x"])], 7, "workers", 0)
    assert place_meets(MESHES, [Condition("given_name", "=", ["x"])], 7, "workers", 0)


def test_the_page_of_tables_lists_every_column() -> None:
    page = (Path(__file__).parents[5] / "docs" / "reference" / "tables.md").read_text()
    for table in TABLES.values():
        section = page.partition(f"\n## {table.name}\n")[2].partition("\n## ")[0]
        listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
        assert listed == [(column.name, column.type) for column in table.sent], table.name


def test_every_table_names_existing_columns_as_its_place_and_no_column_twice() -> None:
    for table in TABLES.values():
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names), table.name
        place = table.place
        assert place is None or {place.mesh_id, place.mesh, place.rank} <= set(names), table.name
