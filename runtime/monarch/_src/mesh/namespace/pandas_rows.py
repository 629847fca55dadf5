"""Rows of data frames, series, indexes and arrays of pandas. No I/O.

pandas is not imported here: with a value of it, it is loaded. Rows are taken by place, not by
label. pandas joins values that differ by filling gaps with NaN, or by falling back to `object`; so
columns, dtypes, names and categories have to be equal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from monarch._src.mesh.namespace.kinds import Kind, Trait, class_of, slice_of, type_of


def _pandas() -> Any:
    return sys.modules["pandas"]


def _dtype(value: Any, of: str = "") -> Trait:
    text = repr(value) if str(value) == "category" else str(value)
    return Trait(f"dtype{of}", value, text)


def _traits_of_index(index: Any, of: str = "") -> Iterator[Trait]:
    yield Trait(f"names{of}", list(index.names))
    if isinstance(index, _pandas().MultiIndex):
        for name, dtype in zip(index.names, index.dtypes, strict=True):
            yield _dtype(dtype, f" of level {name!r}{of}")
    else:
        yield _dtype(index.dtype, of)


def _traits_of_frame(value: Any) -> Iterator[Trait]:
    yield type_of(value)
    if value.ndim == 2:
        yield Trait("columns", value.columns, repr(list(value.columns)))
        yield from _traits_of_index(value.columns, " of the columns")
        for label, dtype in zip(value.columns, value.dtypes, strict=True):
            yield _dtype(dtype, f" of column {label!r}")
    else:
        yield Trait("name", value.name, repr(value.name))
        yield _dtype(value.dtype)
    yield from _traits_of_index(value.index, " of the index")
    yield Trait("attrs", value.attrs)
    yield Trait("flags", value.flags.allows_duplicate_labels, str(value.flags))
    for name in class_of(value)._metadata:  # of a subclass
        if name != "_name" and name != "name":
            yield Trait(name, getattr(value, name, None))


def _traits_of_plain_index(value: Any) -> Iterator[Trait]:
    pandas = _pandas()
    # Joined ranges with gaps between are an index of the same integers.
    kind: type[Any] = pandas.Index if isinstance(value, pandas.RangeIndex) else class_of(value)
    yield Trait("type", kind, kind.__name__)
    yield from _traits_of_index(value)


def _traits_of_array(value: Any) -> Iterator[Trait]:
    yield type_of(value)
    yield _dtype(value.dtype)


def _rows(value: Any, start: int, stop: int) -> Any:
    return value.iloc[start:stop]


def _joined(values: Sequence[Any]) -> Any:
    first, bare = values[0], [value.copy(deep=False) for value in values]
    for value in bare:  # pandas compares attrs, and cannot if there are arrays among them
        value.attrs = {}
    joined = _pandas().concat(bare)
    joined.attrs = first.attrs
    return joined


def _joined_index(values: Sequence[Any]) -> Any:
    return values[0].append(list(values[1:]))


def _joined_array(values: Sequence[Any]) -> Any:
    pandas = _pandas()
    return pandas.concat([pandas.Series(value, copy=False) for value in values]).array


FRAME = Kind(_rows, _joined, _traits_of_frame)
INDEX = Kind(slice_of, _joined_index, _traits_of_plain_index)
EXTENSION_ARRAY = Kind(slice_of, _joined_array, _traits_of_array)
