"""Values are cut into equal rows and joined again, whatever library they are of."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.mesh.namespace.rows import cut, join, part_sizes

NUMBERS = numpy.arange(12.0).reshape(6, 2)
FRAME = pandas.DataFrame({"a": range(6), "b": list("uvwxyz")}, index=[9, 9, 3, 4, 5, 6])


def place(at: int) -> str:
    return f"rank {at}"


def as_list(value: Any) -> Any:
    if isinstance(value, pandas.DataFrame | pandas.Series):
        return value.reset_index().to_numpy().tolist()
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize(
    "value",
    [
        NUMBERS, NUMBERS[:, 0], torch.arange(12).reshape(6, 2), FRAME, FRAME["b"],
        list("abcdef"), tuple(range(6)), [],
    ],
    ids=["array", "column", "tensor", "frame", "series", "list", "tuple", "nothing"],
)  # fmt: skip
def test_what_was_cut_is_joined_to_the_same(value: Any) -> None:
    parts = cut("x", value, 3)
    assert [len(part) for part in parts] == [len(value) // 3] * 3
    assert {type(part) for part in parts} == {type(value)}
    joined = join("x", parts, place)
    assert type(joined) is type(value)
    assert as_list(joined) == as_list(value)


def test_the_parts_of_an_array_are_views_of_it() -> None:
    assert all(numpy.shares_memory(part, NUMBERS) for part in cut("x", NUMBERS, 2))


@given(st.integers(0, 60), st.integers(1, 9))
def test_rows_are_shared_as_numpy_shares_them(rows: int, parts: int) -> None:
    value = numpy.arange(rows)
    found = cut("batch", value, parts)
    expected = numpy.array_split(value, parts)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    assert [len(part) for part in found] == part_sizes(rows, parts)
    assert join("batch", found, place).tolist() == value.tolist()


@pytest.mark.parametrize(
    "value", [3, 2.5, None, "text", {"a": 1}, {1, 2}, numpy.array(3.0), torch.tensor(1), int]
)
def test_what_has_no_rows_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^scatter: x is of type \w+ and has no rows: give an arr"):
        cut("x", value, 2)


def test_values_of_different_types_are_not_joined() -> None:
    with pytest.raises(TypeError, match="x has the type list on rank 0 and the type tuple on rank"):
        join("x", [[1], (2,)], place)
    with pytest.raises(TypeError, match=r"^pull: x is of type float and has no rows: .* join=True"):
        join("x", [1.0, 2.0], place)
    with pytest.raises(
        TypeError, match=r"^pull: x is of type collections.deque, for whose rows th"
    ):
        join("x", [deque([1]), deque([2])], place)
