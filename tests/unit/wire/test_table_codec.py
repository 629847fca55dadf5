"""Columns of a table travel unchanged, and bytes that are no columns are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.wire.table_codec import packed, unpacked
from tests.unit.wire.drawn import ANY_TEXT

CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    ANY_TEXT,
)
COLUMNS = st.integers(0, 8).flatmap(
    lambda rows: st.lists(st.lists(CELLS, min_size=rows, max_size=rows), min_size=1, max_size=3)
)


@given(COLUMNS)
def test_columns_arrive_as_they_were_sent(columns: list[list[object]]) -> None:
    rows = len(columns[0])
    found = unpacked(packed(columns), len(columns), rows)  # type: ignore[arg-type]
    assert found == columns
    assert [[type(cell) for cell in column] for column in found] == [
        [type(cell) for cell in column] for column in columns
    ]


def test_a_column_that_repeats_itself_is_sent_as_its_distinct_values() -> None:
    names = ["workers", "a rather long name of a file"] * 500
    assert len(packed([names])) < 1100
    assert unpacked(packed([names]), 1, 1000) == [names]


@pytest.mark.parametrize("columns", [[["a"]], [["a", "b"], ["c"]], []])
def test_columns_of_another_shape_are_refused(columns: list[list[str]]) -> None:
    with pytest.raises(ValueError, match=r"^expected 2 columns of 2 rows, not columns of"):
        unpacked(packed(columns), 2, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([[["a"], [1]]]),  # an index beyond the values
        msgspec.msgpack.encode([[["a"], [-1]]]),
        msgspec.msgpack.encode({"a": 1}),
    ],
)
def test_bytes_that_are_no_columns_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^these are no columns: "):
        unpacked(data, 1, 1)


@given(st.binary(max_size=64))
def test_any_bytes_are_columns_or_refused(data: bytes) -> None:
    try:
        found = unpacked(data, 1, 1)
    except ValueError:
        return
    assert len(found) == len(found[0]) == 1
