"""Columns of a table as bytes and back. No I/O.

A column whose values repeat (the name of a mesh, a file of a stack) travels as its distinct values
and an index for each row; any other column as a plain list. Both are MessagePack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from monarch._src.wire.msgpack_text import UNREADABLE, pack, unpacker

Cell: TypeAlias = "bool | int | float | str | None"
Columns: TypeAlias = "list[list[Cell]]"


class _Column(msgspec.Struct, array_like=True, gc=False):
    """`indexes` into `values`; without any, `values` are the column itself."""

    values: list[bool | int | float | str | None]
    indexes: list[int] = []


_unpack = unpacker(list[_Column])
_NUMBERS = frozenset((bool, int, float))


def packed(columns: Sequence[Sequence[Cell]]) -> bytes:
    """These columns, which have equal lengths, as bytes."""
    return pack([_packed(column) for column in columns])


def _packed(column: Sequence[Cell]) -> _Column:
    # 1, 1.0 and True are equal: a column of several such types is sent as it is.
    distinct = dict.fromkeys(column)
    if 2 * len(distinct) > len(column) or len(_NUMBERS.intersection(map(type, column))) > 1:
        return _Column(list(column))
    places = {cell: place for place, cell in enumerate(distinct)}
    return _Column(list(distinct), list(map(places.__getitem__, column)))


def unpacked(data: bytes, columns: int, rows: int) -> Columns:
    """The columns that `packed` was given.

    Raises:
        ValueError: the bytes are not that many columns of that many rows.
    """
    try:
        found = [_unpacked(column) for column in _unpack(data)]
    except (*UNREADABLE, IndexError) as error:
        raise ValueError(f"these are no columns: {error}") from None
    if len(found) != columns or any(len(column) != rows for column in found):
        sizes = ", ".join(str(len(column)) for column in found)
        raise ValueError(f"expected {columns} columns of {rows} rows, not columns of {sizes} rows")
    return found


def _unpacked(column: _Column) -> list[Cell]:
    if not column.indexes:
        return list(column.values)
    if min(column.indexes) < 0:
        raise IndexError("a negative index")
    return [column.values[index] for index in column.indexes]
