"""`%%monarch sql` in a real kernel: rows as a table, errors with the caret, completion."""

from __future__ import annotations

import pytest

from monarch.observe import MissingRows, QueryResult
from monarch_jupyter.magics.completion import complete_sql
from monarch_jupyter.rendering.tables import query_html
from tests.notebook.kernel import Kernel

TABLES = {"procs": ["rank", "mesh", "state"], "frames": ["rank", "function", "file"]}


def test_a_query_is_shown_as_a_table_and_kept_in_a_variable(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.ok(
        "%%monarch sql found\nSELECT mesh, rank, failure\nFROM procs ORDER BY rank -- all"
    ).result
    assert shown["text/plain"].splitlines() == [
        "mesh     rank  failure",
        "workers     0  NULL",
        "workers     1  NULL",
        "(2 rows)",
    ]
    assert shown["text/html"].count("<tr>") == 3
    assert "2 rows" in shown["text/html"]
    assert kernel.value("found.rows, type(found).__name__, _ is found") == (
        "((('workers', 0, None), ('workers', 1, None)), 'QueryResult', True)"
    )


def test_an_error_of_a_query_has_the_text_of_duckdb_with_the_caret(kernel: Kernel) -> None:
    shown = kernel.run("%%monarch sql\nSELECT nope FROM procs")
    assert (shown.status, shown.error_name, shown.traceback) == ("error", "UsageError", "")
    first, second, line, caret = shown.stderr.strip().splitlines()
    assert first == ('UsageError: Binder Error: Referenced column "nope" not found in FROM clause!')
    assert second.startswith("Candidate bindings: ")
    assert line == "LINE 1: SELECT nope FROM procs"
    assert caret.index("^") == line.index("nope")


def test_a_cell_without_a_query_and_a_line_are_refused(kernel: Kernel) -> None:
    assert kernel.refused("%monarch sql").startswith("sql takes a whole cell: write %%monarch sql")
    assert kernel.refused("%%monarch sql\n  ").startswith("there is no query; write one below")
    assert kernel.refused("%%monarch sql a b\nFROM procs").startswith("sql takes the name of one")
    said = kernel.refused("%%monarch sql --timeout soon\nFROM procs")
    assert said == "--timeout soon: give seconds, from 0 to 1000000"
    said = kernel.refused("%%monarch sql\nCOPY procs TO 'x'")
    assert said == "only SELECT, SHOW, DESCRIBE and SUMMARIZE are run here, not COPY"


ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range = -1"
RUN = "get_ipython().run_cell_magic('monarch', 'sql{}', query)"
FOREIGN = """
import time
from monarch import observe

def foreign(*_):
    print("begun")
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        pass
    raise {error}

before, observe.query = observe.query, foreign
"""


def test_an_interrupt_is_a_keyboard_interrupt_whatever_runs(kernel: Kernel) -> None:
    kernel.ok("%%monarch sql\nSELECT 1")
    for options in ("", " --df"):
        shown = kernel.interrupt_when(
            f"query = {ENDLESS!r}\nprint('begun')\n{RUN.format(options)}", "begun"
        )
        assert (shown.status, shown.error_name) == ("error", "KeyboardInterrupt")
        assert "telemetry" not in shown.traceback, "of the runtime"
        assert "UsageError" not in shown.stderr
    for error in (
        "RuntimeError('Query interrupted')", "observe.QueryError('INTERRUPT Error')",
        "SystemError('error return without exception set')", "MemoryError", "OSError(4, 'EINTR')",
    ):  # fmt: skip
        kernel.ok(FOREIGN.format(error=error))
        shown = kernel.interrupt_when("%%monarch sql\nSELECT 1", "begun")
        kernel.ok("observe.query = before")
        assert (shown.status, shown.error_name) == ("error", "KeyboardInterrupt"), error
        assert error.partition("(")[0] not in shown.traceback
    assert kernel.ok("%%monarch sql\nSELECT 1").result["text/plain"].splitlines()[1] == "1"
    assert "not COPY" in kernel.refused("%%monarch sql\nCOPY procs TO 'x'")


def test_a_result_is_printed_as_csv(kernel: Kernel) -> None:
    shown = kernel.ok(
        "%%monarch sql --csv text\n"
        "SELECT 1 AS n, 'a, \"b\"' AS t, '' AS e, NULL AS x, [1, NULL] AS l"
    )
    expected = 'n,t,e,x,l\n1,"a, ""b""","",,"[1,null]"\n'
    assert shown.stdout == expected
    assert "execute_result" not in shown.kinds
    assert kernel.value("text") == repr(expected)
    assert kernel.refused("%%monarch sql --csv --df\nSELECT 1") == "give --df or --csv, not both"


PARTIAL = """
from monarch import observe
from monarch.observe import MissingRows, QueryResult

missing = tuple(MissingRows("t", f"w[gpus={rank}] on h", "gone") for rank in (1, 2))
before, observe.query = observe.query, lambda *_: QueryResult(("n",), ("BIGINT",), ((1,),), missing)
"""


def test_every_form_of_a_result_names_the_missing_rows(kernel: Kernel) -> None:
    line = "missing rows of t: w[gpus=1..2] on h: gone"
    kernel.ok(PARTIAL)
    for options in ("--csv", "--df"):
        assert f"monarch: {line}\n" in kernel.ok(f"%%monarch sql {options} f\nSELECT 1").stderr
    assert kernel.value("f.attrs['missing'] == missing") == "True"
    shown = kernel.ok("%%monarch sql found\nSELECT 1").result
    kernel.ok("observe.query = before")
    assert shown["text/plain"].splitlines()[-1] == line
    assert line in shown["text/html"]
    assert kernel.value("found.missing == missing") == "True"


FULL = """
from monarch.actor import Actor, endpoint
from monarch.observe import record

class Worker(Actor):
    @endpoint
    def step(self) -> None:
        pass

record(rows=3)
worker = workers.spawn("worker", Worker)
for _ in range(5):
    worker.step.call().get()
"""


def test_every_form_of_a_result_tells_what_history_has_dropped(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(FULL)
    cell = "SELECT count(*) AS n FROM messages WHERE mesh = 'workers'"
    shown = kernel.ok(f"%%monarch sql found\n{cell}").result
    line = shown["text/plain"].splitlines()[-1]
    assert line.startswith("dropped rows of messages: workers[gpus=0..1] on ")
    assert ": 4 made room for newer ones; complete since " in line
    assert line in shown["text/html"]
    assert kernel.value("found.rows, [one.count for one in found.dropped]") == "(((6,),), [2, 2])"
    for options in ("--csv", "--df"):
        assert f"monarch: {line}\n" in kernel.ok(f"%%monarch sql {options} f\n{cell}").stderr
    # Their times differ by the steps of the system's clock meanwhile.
    told = "[(one.table, one.where, one.count) for one in %s]"
    assert kernel.value(told % "f.attrs['dropped']") == kernel.value(told % "found.dropped")


def test_tables_and_columns_complete_in_the_cell(kernel: Kernel) -> None:
    assert kernel.complete("%%monarch sql\nSELECT * FROM pro") == ["procs", "proc_nodes"]
    assert "log_lines" in kernel.complete("%%monarch sql\nSELECT text\nFROM lo")
    assert kernel.complete("%%monarch sql\nSELECT f.func") == []
    assert kernel.complete("%%monarch sql\nFROM frames f SELECT f.func") == ["function"]
    assert "--df" in kernel.complete("%%monarch sql --")


@pytest.mark.parametrize(
    ("cell", "offered"),
    [
        ("%%monarch sql\n|", ["rank", "mesh", "state", "function", "file", "procs", "frames"]),
        ("%%monarch sql\nselect ra|", ["rank"]),
        ("%%monarch sql\nselect fu| from procs", []),
        ("%%monarch sql\nselect fu| from frames", ["function"]),
        ("%%monarch sql\nselect p.| from procs p, frames f", ["rank", "mesh", "state"]),
        ("%%monarch sql\nselect f.FI| from procs p join frames as f", ["file"]),
        ("%%monarch sql\nselect frames.f| from frames", ["function", "file"]),
        ("%%monarch sql\nselect x.| from frames", []),
        ("%%monarch sql\nselect 1 from |", ["procs", "frames"]),
        ("%%monarch sql\nselect 1 from procs, fr|", ["frames"]),
        ("%%monarch sql\nselect 1 from procs JOIN |", ["procs", "frames"]),
        ("%%monarch sql\ndescribe p|", ["procs"]),
        ("%%monarch sql\nselect rank from procs wh|", ["WHERE"]),
    ],
)
def test_names_that_fit_the_place_are_offered(cell: str, offered: list[str]) -> None:
    cursor = cell.index("|")
    found = complete_sql(cell.replace("|", ""), cursor, TABLES)
    assert found is not None
    names = [name for name in found[1] if not name.isupper() or name in offered]
    assert names == offered


@pytest.mark.parametrize("cell", ["%%monarch on w\nra|", "%%monarch sql|\nra", "x = 1\n|"])
def test_other_cells_are_left_to_others(cell: str) -> None:
    assert complete_sql(cell.replace("|", ""), cell.index("|"), TABLES) is None


def test_text_of_rows_is_escaped_and_long_results_are_cut() -> None:
    hostile = QueryResult(("<b>",), ("VARCHAR",), (("<script>alert(1)</script>",), (None,)))
    assert "<script" not in query_html(hostile)
    assert "&lt;script&gt;" in query_html(hostile)
    many = QueryResult(
        ("n",), ("BIGINT",), tuple((n,) for n in range(300)), (MissingRows("t", "a<b", "gone"),)
    )
    assert query_html(many).count("<td") == 200
    assert "300 rows, 100 not shown" in query_html(many)
    assert "missing rows of t: a&lt;b: gone" in query_html(many)
