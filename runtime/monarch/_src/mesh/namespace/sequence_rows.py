"""Rows of lists, tuples, ranges, bytes and array.array. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from monarch._src.mesh.namespace.kinds import Kind, Trait, class_of, slice_of, type_of


def _traits(value: Any) -> Iterator[Trait]:
    yield type_of(value)
    if hasattr(value, "typecode"):  # of an array.array
        yield Trait("typecode", value.typecode)


def _joined_range(values: Sequence[range]) -> range:
    filled = [value for value in values if value] or list(values[:1])
    last = filled[-1]
    joined = range(filled[0].start, last.stop, filled[0].step)
    if list(chain(*filled)) != list(joined):
        raise ValueError("its ranges do not follow each other")
    return joined


def _joined_array(values: Sequence[Any]) -> Any:
    joined = values[0][:0]
    for value in values:
        joined.extend(value)
    return joined


def _problem(value: Any) -> str | None:
    """Slices of a subclass are of its base: without its methods, fields and attributes."""
    kind = class_of(value)
    base = next(base for base in kind.__mro__ if base.__module__ in ("builtins", "array"))
    if kind is base:
        return None
    return f"has slices that are no {kind.__name__}: give it as {base.__name__}(...)"


def _joined_list(values: Sequence[list[Any]]) -> list[Any]:
    return list(chain(*values))


def _joined_tuple(values: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(chain(*values))


def _joined_bytearray(values: Sequence[bytearray]) -> bytearray:
    return bytearray().join(values)


def _kind(join: Callable[[Any], Any]) -> Kind:
    return Kind(slice_of, join, _traits, _problem)


LIST = _kind(_joined_list)
TUPLE = _kind(_joined_tuple)
RANGE = _kind(_joined_range)
BYTES = _kind(b"".join)
BYTEARRAY = _kind(_joined_bytearray)
ARRAY = _kind(_joined_array)
