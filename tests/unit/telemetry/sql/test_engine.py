"""The engine runs queries over what it is given, and nothing that a query says reaches further."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.errors import QueryError
from monarch._src.telemetry.sql.engine import Engine, joined
from monarch._src.telemetry.sql.state.schema import TABLES
from monarch._src.telemetry.sql.state.views import VIEWS
from monarch._src.wire.table_codec import Cell
from tests.unit.wire.drawn import ANY_TEXT

secret = [1, 2, 3]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    threads = threading.active_count()
    made = Engine()
    yield made
    assert threading.active_count() == threads, "DuckDB has threads"


def test_every_table_is_listed_with_its_columns(engine: Engine) -> None:
    assert {row[0] for row in engine.run("SHOW TABLES", {}).rows} == {*TABLES, *VIEWS}
    for name, table in TABLES.items():
        rows = engine.run(f"DESCRIBE {name}", {}).rows
        assert [row[:2] for row in rows] == [(c.name, c.type) for c in table.columns]
    for name, view in VIEWS.items():
        rows = engine.run(f"DESCRIBE {name}", {}).rows
        assert [row[:2] for row in rows] == [(c.name, c.type) for c in view.columns], name


def test_a_query_reads_what_was_loaded_and_the_next_one_does_not(engine: Engine) -> None:
    tables: dict[str, dict[str, list[Cell]]] = {
        "procs": {"rank": [1, None, 3], "mesh": ["a", None, "b"], "busy_s": [0.5, 1e-300, None]}
    }
    found = engine.run("SELECT rank, mesh, busy_s, pid FROM procs ORDER BY mesh", tables)
    assert found.rows == ((1, "a", 0.5, None), (3, "b", None, None), (None, None, 1e-300, None))
    assert found.columns == ("rank", "mesh", "busy_s", "pid")
    assert found.types == ("BIGINT", "VARCHAR", "DOUBLE", "BIGINT")
    assert engine.run("SELECT count(*) FROM procs", {}).rows == ((0,),)


def test_the_largest_numbers_and_booleans_are_loaded_exactly(engine: Engine) -> None:
    tables: dict[str, dict[str, list[Cell]]] = {
        "calls": {"mesh_id": [2**64 - 1, 0], "rank": [-(2**63), 5], "awaited": [True, False]}
    }
    found = engine.run("SELECT mesh_id, rank, awaited FROM calls ORDER BY rank", tables)
    assert found.rows == ((2**64 - 1, -(2**63), True), (0, 5, False))


@given(texts=st.lists(ANY_TEXT | st.none(), min_size=1, max_size=5))
def test_any_text_is_loaded_as_it_is(engine: Engine, texts: list[str | None]) -> None:
    cells: list[Cell] = list(texts)
    tables = {"log_lines": {"number": [*range(len(texts))], "text": cells}}
    found = engine.run("SELECT text FROM log_lines ORDER BY number", tables)
    expected = [
        None if text is None else text.encode("utf-8", "backslashreplace").decode()
        for text in texts
    ]
    assert [row[0] for row in found.rows] == expected


def test_marks_in_text_do_not_split_it() -> None:
    text, marks = joined([["a\x1fb", None], ["\x1e", "\x1d"]])
    rows = [row.split(chr(marks.cell)) for row in text.split(chr(marks.row))]
    assert rows == [["a\x1fb", "\x1e"], [chr(marks.null), "\x1d"]]


DUCKDB_1 = duckdb.__version__.startswith("1.")  # the newest for Python 3.10; one caret for a word
ERRORS = [
    ("selec 1", 'syntax error at or near "selec"', "^"),
    ("SELECT nam FROM procs", 'Referenced column "nam" not found', "^^^"),
    ("SELECT * FROM proces", "Table with name proces does not exist", "^"),
    ("SELECT rank FROM procs GROUP BY pid", 'column "rank" must appear in the GROUP BY', "^^^^"),
]


@pytest.mark.parametrize(("sql", "says", "caret"), ERRORS)
def test_a_wrong_query_is_refused_with_the_text_of_duckdb_and_a_caret(
    engine: Engine, sql: str, says: str, caret: str
) -> None:
    with pytest.raises(QueryError) as raised:
        engine.needs(sql)
    lines = str(raised.value).splitlines()
    assert says in str(raised.value)
    assert f"LINE 1: {sql}" in lines
    assert lines[-1].strip().startswith("^" if DUCKDB_1 else caret)


def test_an_attribute_taken_for_a_column_is_refused_with_the_query_for_it(engine: Engine) -> None:
    with pytest.raises(QueryError) as raised:
        engine.needs("SELECT rank, loss FROM attributes")
    *_, caret, remedy = str(raised.value).splitlines()
    assert caret.strip().startswith("^")
    query = remedy.partition("; write ")[2]
    assert query == "SELECT text FROM attributes WHERE name = 'loss'"
    engine.needs(query)


NO_SELECT = [
    ("copy procs TO 'x'", "not COPY"),
    ("  -- SET\n begin", "not BEGIN"),
    ("/* é */ RESET memory_limit", "not RESET"),
    ("INSTALL httpfs", "not INSTALL"),
    ("CHECKPOINT", "not CHECKPOINT"),
    ("COMMENT ON TABLE procs IS 'SELECT'", "not COMMENT"),
    ("UPDATE EXTENSIONS", "not UPDATE"),
    ('WITH x AS (SELECT 1 AS "UPDATE") INSERT INTO procs (rank) FROM x', "not INSERT"),
    ("PIVOT procs ON state USING count(*) GROUP BY mesh", "PIVOT procs ON state IN ('idle'"),
    ("WITH p AS (PIVOT procs ON state USING count(*)) FROM p", "PIVOT is run here with"),
    ("SELECT 1; SELECT 2", "give one query, not 2"),
    ("-- nothing", "the text has no query"),
]


@pytest.mark.parametrize(("statement", "says"), NO_SELECT)
def test_a_refusal_names_a_word_of_the_query(engine: Engine, statement: str, says: str) -> None:
    with pytest.raises(QueryError) as raised:
        engine.needs(statement)
    assert says in str(raised.value)


def test_a_query_that_changes_a_table_on_its_way_is_refused(engine: Engine) -> None:
    with pytest.raises(QueryError, match=r"changes a table|A CTE needs a SELECT"):
        engine.needs("WITH x AS (DELETE FROM procs RETURNING *) SELECT * FROM x")


def test_the_offered_pivot_runs(engine: Engine) -> None:
    sql = "PIVOT procs ON state IN ('idle', 'busy') USING count(*) GROUP BY mesh"
    assert {"mesh", "state"} <= set(engine.needs(sql)["procs"].columns)
    found = engine.run(sql, {"procs": {"state": ["idle", "idle"], "mesh": ["a", "a"]}})
    assert (found.columns, found.rows) == (("mesh", "idle", "busy"), (("a", 2, 0),))


def test_an_error_while_it_runs_leaves_the_engine_usable(engine: Engine) -> None:
    with pytest.raises(QueryError, match="Could not convert string"):
        engine.run("SELECT mesh::BIGINT FROM procs", {"procs": {"mesh": ["x"]}})
    assert engine.run("SELECT count(*) FROM procs", {}).rows == ((0,),)


@pytest.mark.parametrize(
    "statement",
    [
        "COPY procs TO '{file}'",
        "COPY (SELECT 1) TO '{file}' (FORMAT parquet)",
        "EXPORT DATABASE '{file}'",
        "ATTACH '{file}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '90GB'",
        "RESET lock_configuration",
        "SET GLOBAL enable_external_access = true",
        "PRAGMA database_list",
        "CREATE TABLE mine (a INTEGER)",
        "INSERT INTO procs (rank) VALUES (1)",
        "DROP TABLE procs",
        "UPDATE procs SET rank = 1",
        "CALL duckdb_settings()",
        "EXPLAIN ANALYZE SELECT 1",
        "BEGIN",
        "PREPARE p AS SELECT 1",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
        "SELECT ?",
        "SELECT $name",
        "WITH x AS (INSERT INTO procs (rank) VALUES (1) RETURNING *) SELECT * FROM x",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('*')",
        "SELECT * FROM parquet_scan('{file}')",
        "SELECT * FROM secret",
        "SELECT getenv('HOME')",
    ],
)
def test_what_reaches_beyond_the_tables_is_refused(
    engine: Engine, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "there.csv"
    file.write_text("a\n1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryError):
        engine.needs(statement.format(file=file))
    assert file.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("statement", ["COPY procs TO 'x.csv'", "SET memory_limit = '90GB'"])
def test_the_configuration_refuses_what_would_pass_the_first_check(
    engine: Engine, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryError, match=r"disabled by configuration|has been locked"):
        engine.run(statement, {})
    assert list(tmp_path.iterdir()) == []


WITHOUT = """
import sys
sys.modules["duckdb"] = None
from monarch.observe import QueryError, query
try:
    query("SELECT 1")
except QueryError as error:
    print(error)
print("pandas" in sys.modules)
"""


def test_without_duckdb_a_query_says_what_to_install(run_python: Callable[..., str]) -> None:
    said = "queries need DuckDB, which is not installed; pip install 'monarch-jupyter[sql]'"
    assert run_python(WITHOUT).splitlines() == [said, "False"]


def test_views_are_made_of_the_tables_that_were_loaded(engine: Engine) -> None:
    place: dict[str, list[Cell]] = {"session": ["s", "s"], "host": ["h", "h"]}
    actors: dict[str, list[Cell]] = {
        **place, "id": [5, 6], "mesh_id": [8, 8], "proc_mesh_id": [7, 7],
        "proc_mesh": ["workers", "workers"],
        "proc_rank": [0, 1], "rank": [0, 1], "name": ["w", "w"], "class": ["W", "W"],
        "status": ["idle", "failed"], "running": [None, None], "queued": [0, 2],
    }  # fmt: skip
    procs: dict[str, list[Cell]] = {
        **place, "mesh_id": [7, 7], "mesh": ["workers", "workers"], "rank": [0, 1],
        "state": ["idle", "failed"],
    }  # fmt: skip
    tables = {"actors": actors, "procs": procs, "hosts": {"session": ["s"], "host": ["h"]}}
    found = engine.run("SELECT node_kind, count(*) FROM nodes GROUP BY 1 ORDER BY 1", tables)
    assert found.rows == (("actor", 2), ("host", 1), ("proc", 2), ("root", 1))
    whole = "SELECT count(*) FROM children c JOIN nodes p ON p.node_id = c.parent_id JOIN nodes n "
    assert engine.run(f"{whole}ON n.node_id = c.child_id", tables).rows == ((5,),)
    nodes = "SELECT actor_status, queue_depth FROM actor_nodes ORDER BY node_id"
    assert engine.run(nodes, tables).rows == (("idle", 0), ("failed", 2))
    nodes = "SELECT num_actors, is_poisoned, failed_actor_count FROM proc_nodes ORDER BY node_id"
    assert engine.run(nodes, tables).rows == ((1, False, 0), (1, True, 1))
    frames: dict[str, list[Cell]] = {
        "session": ["s"] * 3, "host": ["h"] * 3, "mesh_id": [7] * 3, "mesh": ["workers"] * 3,
        "rank": [0] * 3, "thread": ["MainThread", "MainThread", None], "depth": [0, 1, None],
        "function": ["run", "step", None], "file": ["/a/run.py", "/a/w.py", None],
        "line": [3, 4, None], "waits": [False, False, None],
    }  # fmt: skip
    stacks = "SELECT frame_depth, name, short_filename, is_entry FROM pyspy_frames ORDER BY 1"
    found = engine.run(stacks, {"frames": frames, "procs": procs})
    assert found.rows == ((0, "step", "w.py", False), (1, "run", "run.py", True))
    traces = "SELECT t.active, count(*) FROM pyspy_stack_traces t JOIN pyspy_frames f USING "
    found = engine.run(f"{traces}(thread_id) GROUP BY 1", {"frames": frames, "procs": procs})
    assert found.rows == ((True, 2),)
