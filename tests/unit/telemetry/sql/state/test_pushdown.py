"""The needs of a query, read from DuckDB's own syntax trees: enough, and no more than known to be.

The last test runs random queries on all rows, and on what the needs leave of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._src.telemetry.sql.engine import Engine
from monarch._src.telemetry.sql.state.pushdown import Need, RefusedQueryError, needs_of
from monarch._src.telemetry.sql.state.rows import Row, meets
from monarch._src.telemetry.sql.state.schema import FRAMES, LOG_LINES, PROCS, TABLES
from monarch._src.telemetry.sql.state.views import VIEWS
from monarch._src.wire.messages import Condition

ALL = {name: tuple(column.name for column in table.columns) for name, table in TABLES.items()}

# The newest DuckDB for Python 3.10. Its tree has another constant and another NOT.
IS_DUCKDB_1 = duckdb.__version__.startswith("1.")
BY_DUCKDB_1: dict[str, list[tuple[str, str, list[Any]]]] = {
    "mesh_id = 18446744073709551615": [],
    "not rank = 3": [("rank", "!=", [3])],
}


@pytest.fixture(scope="module")
def parser() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:", config={"threads": "1"}) as connection:
        yield connection


def needs(parser: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Need]:
    found = parser.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert found is not None
    tree = json.loads(found[0])
    assert not tree["error"], tree
    return needs_of(tree["statements"][0], TABLES, VIEWS)


def only(parser: duckdb.DuckDBPyConnection, sql: str, table: str = "procs") -> Need:
    found = needs(parser, sql)
    assert list(found) == [table]
    return found[table]


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select rank, pid from procs", ("rank", "pid")),
        ("select RANK from PROCS where State = 'busy'", ("rank", "state")),
        ("select p.rank from procs p order by p.pid", ("rank", "pid")),
        ("select host from procs", ("host", "mesh_id")),
        ("select count(*) from procs", ("mesh_id",)),
        ("select 1 from procs", ("mesh_id",)),
        ("select * from procs", ALL["procs"]),
        ("from procs", ALL["procs"]),
        ("select * exclude (rank) from procs", ALL["procs"]),
        ("select columns('r.*') from procs", ALL["procs"]),
        ("select #1 from procs", ALL["procs"]),
        ("select procs from procs", ALL["procs"]),
        ("select p from procs p", ALL["procs"]),
        ("summarize procs", ALL["procs"]),
        ("with a as (select rank from procs) select count(*) from a", ("rank",)),
        ("select (select max(rank) from procs)", ("rank",)),
        ("select 1 where exists (select 1 from procs where pid = 3)", ("pid",)),
    ],
)
def test_a_query_needs_the_columns_that_it_names(
    parser: duckdb.DuckDBPyConnection, sql: str, columns: tuple[str, ...]
) -> None:
    assert only(parser, sql).columns == columns


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        "show tables",
        "describe procs",
        "select * from information_schema.columns",
        "select * from elsewhere",
        "select 'procs'",
    ],
)
def test_a_query_that_reads_no_rows_of_a_table_needs_none(
    parser: duckdb.DuckDBPyConnection, sql: str
) -> None:
    assert needs(parser, sql) == {}


def test_each_table_of_a_join_is_needed(parser: duckdb.DuckDBPyConnection) -> None:
    found = needs(parser, "select f.line from frames f join procs p using (rank) where pid > 2")
    assert found == {
        "frames": Need(("rank", "line")),
        "procs": Need(("rank", "pid", "line"), (Condition("pid", ">", [2]),)),
    }


@pytest.mark.parametrize(
    ("where", "conditions"),
    [
        ("rank = 3", [("rank", "=", [3])]),
        ("3 < rank", [("rank", ">", [3])]),
        ("rank <> -3", [("rank", "!=", [-3])]),
        ("rank >= 3 and (rank <= 5 and mesh = 'w')", [
            ("rank", ">=", [3]), ("rank", "<=", [5]), ("mesh", "=", ["w"]),
        ]),
        ("rank between 3 and 5", [("rank", ">=", [3]), ("rank", "<=", [5])]),
        ("rank in (1, 2) and mesh in ('a', 'b')", [
            ("rank", "in", [1, 2]), ("mesh", "in", ["a", "b"]),
        ]),
        ("procs.rank = 3", [("rank", "=", [3])]),
        ("since_s > 2", [("since_s", ">", [2])]),
        ("mesh_id = 18446744073709551615", [("mesh_id", "=", [2**64 - 1])]),
        ("host = 'here' and session <> 'x'", [("host", "=", ["here"]), ("session", "!=", ["x"])]),
        # What is not passed on is left to DuckDB.
        ("rank = 3 or rank = 4", []),
        ("not rank = 3", []),
        ("rank not in (3, 4)", []),
        ("rank = '3'", []),
        ("rank = pid", []),
        ("rank + 1 = 3", []),
        ("rank = 3.5", []),
        ("rank is null", []),
        ("rank in (1, null)", []),
        ("mesh like 'w%'", []),
        ("rank = 99999999999999999999999", []),
        ("rank = (select max(rank) from hosts)", []),
    ],
)  # fmt: skip
def test_comparisons_with_constants_are_passed_on(
    parser: duckdb.DuckDBPyConnection, where: str, conditions: list[tuple[str, str, list[Any]]]
) -> None:
    found = needs(parser, f"select 1 from procs where {where}")
    expected = BY_DUCKDB_1.get(where, conditions) if IS_DUCKDB_1 else conditions
    assert list(found["procs"].conditions) == [Condition(*one) for one in expected]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from procs a join procs b using (rank) where a.rank = 3",
        "select * from procs where rank = 3 union select * from procs",
        "with procs as (select 3 as rank) select * from procs where rank = 3",
        "select * from procs tablesample 10% where rank = 3",
        "select * from procs where rank = 3 using sample 5 rows",
        "select * from procs p asof join frames f on p.rank >= f.rank where p.pid = 3",
        "select * from procs p positional join frames f where p.pid = 3",
        "select * from procs as p(a, b) where rank = 3",
        "select * from procs, hosts where host = 3",
        "select * from procs, (select 3 as x) where rank = 3",
        "select * from procs, unnest([1, 2]) u(rank2) where rank = 3",
        "select 1 from frames where exists (select 1 from procs where frames.line = 3)",
    ],
)
def test_no_condition_is_passed_on_where_it_could_change_the_result(
    parser: duckdb.DuckDBPyConnection, sql: str
) -> None:
    assert all(need.conditions == () for need in needs(parser, sql).values())


def test_conditions_of_subqueries_are_passed_on(parser: duckdb.DuckDBPyConnection) -> None:
    found = only(parser, "select 1 from (select rank from procs where pid = 3) where rank = 2")
    assert found.conditions == (Condition("pid", "=", [3]),)


@pytest.mark.parametrize(
    ("sql", "limit"),
    [
        ("select rank from procs limit 5", 5),
        ("select *, 1 from procs limit 5 offset 2", 7),
        ("select rank from procs where rank between 2 and 4 and mesh = 'w' limit 3", 3),
        ("select rank from procs", -1),
        ("select rank from procs where mesh like 'w%' limit 5", -1),
        ("select rank from procs where host = 'x' limit 5", -1),
        ("select rank from procs where rank = 3 or pid = 3 limit 5", -1),
        ("select rank from procs order by rank limit 5", -1),
        ("select distinct rank from procs limit 5", -1),
        ("select count(*) from procs limit 5", -1),
        ("select rank from procs group by rank limit 5", -1),
        ("select unnest([1, 2]) from procs limit 5", -1),
        ("select rank from procs limit 10%", -1),
        ("select rank from procs, hosts limit 5", -1),
        ("select rank from procs qualify row_number() over () > 2 limit 5", -1),
        ("select * from (select rank from procs) limit 5", -1),
        ("select rank from procs limit 5 + 1", -1),
        ("(select rank from procs limit 5) union all (select rank from hosts)", -1),
    ],
)
def test_a_limit_is_passed_on_if_nothing_stands_between(
    parser: duckdb.DuckDBPyConnection, sql: str, limit: int
) -> None:
    assert needs(parser, sql)["procs"].limit == limit


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("from query('select * from procs')", "hides which tables it reads"),
        ("from query_table('procs')", "hides which tables it reads"),
        pytest.param(
            "with x as (delete from procs returning *) select * from x",
            "changes a table",
            marks=pytest.mark.skipif(IS_DUCKDB_1, reason="DuckDB 1 does not parse it"),
        ),
    ],
)
def test_a_query_that_hides_its_tables_or_changes_one_is_refused(
    parser: duckdb.DuckDBPyConnection, sql: str, why: str
) -> None:
    with pytest.raises(RefusedQueryError, match=why):
        needs(parser, sql)


# --- random queries -------------------------------------------------------------------------------

RANKS = st.integers(0, 3)
WORDS = st.sampled_from(["a", "b", "c"])


def _rows() -> st.SearchStrategy[dict[str, list[Row]]]:
    procs = st.builds(
        lambda rank, mesh, pid: tuple(
            {"rank": rank, "mesh": mesh, "pid": pid}.get(column.name) for column in PROCS.sent
        ),
        RANKS, WORDS, st.none() | RANKS,
    )  # fmt: skip
    frames = st.builds(
        lambda rank, thread, depth: tuple(
            {"rank": rank, "thread": thread, "depth": depth}.get(column.name)
            for column in FRAMES.sent
        ),
        RANKS, st.none() | WORDS, st.none() | RANKS,
    )  # fmt: skip
    lines = st.builds(
        lambda rank, text: tuple(
            {"rank": rank, "text": text}.get(column.name) for column in LOG_LINES.sent
        ),
        RANKS, WORDS,
    )  # fmt: skip
    return st.fixed_dictionaries({
        "procs": st.lists(procs, max_size=5),
        "frames": st.lists(frames, max_size=5),
        "log_lines": st.lists(lines, max_size=5),
    })  # fmt: skip


COMPARED = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
TERMS = st.one_of(
    st.builds("p.rank {} {}".format, COMPARED, RANKS),
    st.builds("{} {} p.pid".format, RANKS, COMPARED),
    st.builds("f.depth {} {}".format, COMPARED, RANKS),
    st.builds("f.thread {} '{}'".format, COMPARED, WORDS),
    st.builds("pid in ({}, {})".format, RANKS, RANKS),
    st.builds("depth between {} and {}".format, RANKS, RANKS),
    st.sampled_from(["pid is null", "depth is null", "p.rank = f.rank", "not thread = 'a'"]),
)
WHERES = st.recursive(
    TERMS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner), st.builds("({} or {})".format, inner, inner)
    ),
    max_leaves=4,
)
JOINS = st.sampled_from([
    "procs p join frames f on p.rank = f.rank",
    "procs p left join frames f on p.rank = f.rank",
    "procs p right join frames f on p.rank = f.rank and f.depth = 1",
    "procs p full join frames f on p.rank = f.rank",
    "procs p full join frames f using (rank)",
    "procs p, frames f",
    "procs p left join frames f on p.rank = f.rank left join log_lines l on l.rank = f.rank",
])  # fmt: skip
QUERIES = st.one_of(
    st.builds("select p.mesh, p.pid, f.thread from {} where {}".format, JOINS, WHERES),
    st.builds("select p.* , count(f.depth) over () from {} where {}".format, JOINS, WHERES),
    st.builds(
        "with t as (select p.pid, f.depth as rank from {} where {}) select * from t where rank = {}"
        .format,
        JOINS, WHERES, RANKS,
    ),
    st.builds("select pid as rank, rank as pid from procs where rank = {} and pid > {}".format,
              RANKS, RANKS),
    st.builds(
        "select rank from procs where rank {} {} and not exists "
        "(select 1 from frames where frames.rank = procs.rank and depth = {})".format,
        COMPARED, RANKS, RANKS,
    ),
)  # fmt: skip


def as_columns(table: str, rows: list[Row], names: tuple[str, ...]) -> dict[str, list[Any]]:
    known = TABLES[table]
    return {
        name: [row[known.index(name)] for row in rows]
        for name in names
        if name not in ("session", "host")
    }


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@settings(max_examples=150)
@given(rows=_rows(), sql=QUERIES)
def test_the_rows_that_are_left_out_change_no_result(
    engine: Engine, rows: dict[str, list[Row]], sql: str
) -> None:
    found = engine.needs(sql)
    whole = {name: as_columns(name, rows[name], ALL[name]) for name in found}
    left = {
        name: as_columns(
            name,
            [
                row
                for row in rows[name]
                if all(meets(row[TABLES[name].index(c.column)], c) for c in need.conditions)
            ],
            need.columns,
        )
        for name, need in found.items()
    }
    expected, got = engine.run(sql, whole), engine.run(sql, left)
    assert sorted(map(repr, got.rows)) == sorted(map(repr, expected.rows))
    assert got.columns == expected.columns


def test_a_view_needs_its_tables_as_a_whole(parser: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT addr FROM host_nodes JOIN procs USING (host) WHERE procs.rank = 3 LIMIT 2"
    found = needs(parser, sql)
    assert found["hosts"] == Need(ALL["hosts"])
    assert found["procs"].conditions == (Condition("rank", "=", [3]),)
    found = needs(parser, "SELECT count(*) FROM host_nodes, hosts WHERE hosts.host = 'x'")
    assert found["hosts"].conditions == (), "the view needs the other hosts too"
