"""The rows of a query as text and as data."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch.observe import DroppedRows, MissingRows, QueryResult, query

RESULT = QueryResult(
    ("mesh", "rank", "text"),
    ("VARCHAR", "BIGINT", "VARCHAR"),
    (("workers", 3, None), ("w", 12, "two\nlines")),
)


def test_rows_are_aligned_with_numbers_on_the_right() -> None:
    assert str(RESULT).splitlines() == [
        "mesh     rank  text",
        "workers     3  NULL",
        "w          12  two lines",
        "(2 rows)",
    ]


def test_rows_are_read_as_tuples_or_as_dicts() -> None:
    assert len(RESULT) == 2
    assert list(RESULT) == list(RESULT.rows)
    assert RESULT.dicts()[0] == {"mesh": "workers", "rank": 3, "text": None}


def test_a_long_result_says_how_many_rows_are_not_shown() -> None:
    many = QueryResult(("n",), ("BIGINT",), tuple((n,) for n in range(100)))
    lines = str(many).splitlines()
    assert len(lines) == 42
    assert lines[-1] == "(100 rows, 60 not shown)"


def test_what_is_missing_is_told_below_the_rows() -> None:
    partial = QueryResult(("n",), ("BIGINT",), (), (MissingRows("procs", "a", "it is gone"),))
    assert str(partial).splitlines() == ["n", "(0 rows)", "missing rows of procs: a: it is gone"]


def test_what_was_dropped_is_told_below_the_rows() -> None:
    dropped = (DroppedRows("messages", "client", 2, 0),)
    found = QueryResult(("n",), ("BIGINT",), (), (), dropped)
    line = "dropped rows of messages: client: 2 made room for newer ones"
    assert str(found).splitlines() == ["n", "(0 rows)", line]


def test_an_arrow_table_has_the_types_of_the_columns_also_without_rows() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="an Arrow table is a pyarrow.Table")
    names, kinds = ("i", "u", "f", "b", "t"), ("BIGINT", "UBIGINT", "DOUBLE", "BOOLEAN", "VARCHAR")
    rows = ((-1, 2**64 - 1, 0.5, True, "x"), (None,) * 5)
    table = QueryResult(names, kinds, rows).arrow()
    assert table.to_pylist() == [dict(zip(names, row, strict=True)) for row in rows]
    assert QueryResult(names, kinds, ()).arrow().schema == table.schema
    whole = QueryResult(("sum",), ("HUGEINT",), ((3,),)).arrow()
    assert whole.schema.types == [pyarrow.int64()]


ARROW = """
import sys
from monarch.observe import QueryEngine, QueryError
sys.modules["pyarrow"] = None
try:
    QueryEngine().query("no query at all")
except QueryError as error:
    print(error)
"""


def test_without_pyarrow_an_arrow_table_is_refused_with_the_remedy(
    run_python: Callable[..., str],
) -> None:
    assert run_python(ARROW).startswith("an Arrow table needs pyarrow, which is not installed; pip")


@pytest.mark.parametrize("timeout", [-1.0, float("inf"), float("nan")])
def test_a_time_out_that_is_no_time_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="give seconds, at least 0 and finite, or None"):
        query("SELECT 1", timeout)


DATAFRAME = """
import sys
from monarch.observe import QueryError, QueryResult
result = QueryResult(("n",), ("BIGINT",), ((1,),))
sys.modules["pandas"] = None
try:
    result.df()
except QueryError as error:
    print(error)
"""


def test_without_pandas_a_data_frame_is_refused_with_the_remedy(
    run_python: Callable[..., str],
) -> None:
    assert run_python(DATAFRAME).startswith("a DataFrame needs pandas, which is not installed; pip")
