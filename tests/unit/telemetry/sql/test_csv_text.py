"""CSV that Python's reader and DuckDB's read back."""

from __future__ import annotations

import csv
import io
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.telemetry.sql.query import csv_text


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        (None, ""),
        ("", '""'),
        ("a b", "a b"),
        ('a "b", c\n', '"a ""b"", c\n"'),
        (True, "true"),
        (2**127, str(2**127)),
        (0.1, "0.1"),
        (float("nan"), "nan"),
        (Decimal("1.10"), "1.10"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(minutes=90), "PT5400S"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([1, None], '"[1,null]"'),
        ({"a": "x"}, '"{""a"":""x""}"'),
    ],
)
def test_a_cell_is_written_so(cell: object, written: str) -> None:
    assert csv_text(["n"], [[cell]]) == f"n\n{written}\n"


@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from(',"\n')),
            min_size=2, max_size=2,
        )
    )
)  # fmt: skip
def test_texts_are_read_back(rows: list[list[str]]) -> None:
    assert list(csv.reader(io.StringIO(csv_text(["a", "b"], rows)))) == [["a", "b"], *rows]


def test_duckdb_reads_it_with_null_and_empty_text_apart(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(csv_text(["t", "n"], [["", 1], [None, 2], ["x,y", None]]))
    read = f"FROM read_csv('{file}', allow_quoted_nulls = false)"
    found = duckdb.connect().execute(read).fetchall()
    assert found == [("", 1), (None, 2), ("x,y", None)]
