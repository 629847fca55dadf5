"""Values that have rows: arrays, tensors, data frames and sequences, cut and joined. No I/O.

No array library is imported here. A value of one is known by its attributes, and its library is
loaded already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, cast

_INSTEAD = {"pull": "; or pull it without join=True"}
_WITHOUT_ROWS: tuple[type[Any], ...] = (str, Mapping, Set, type)


def cut(name: str, value: Any, parts: int, of: str) -> list[Any]:
    """The value in equal parts along its first axis, each with consecutive rows.

    The parts of an array, tensor or data frame are views of it. `of`: the mesh, for errors.

    Raises:
        TypeError: the value has no rows.
        ValueError: the parts would not be equal.
    """
    rows = _count(name, value)
    size, rest = divmod(rows, parts)
    if rest:
        fewer = f"{rows - rest:,} or " if size else ""
        raise ValueError(
            f"scatter: {name} has {rows:,} rows, which the {parts:,} ranks of {of} do not divide: "
            f"give it {fewer}{rows - rest + parts:,}, or push all of it and let each rank take its "
            "own"
        )
    indexed = getattr(value, "iloc", value)  # of pandas: by place, not by label
    return [indexed[at * size : (at + 1) * size] for at in range(parts)]


def join(name: str, values: Sequence[Any]) -> Any:
    """The values of all ranks, in order, as one along their first axis: what `cut` has cut.

    Raises:
        TypeError: the values have no rows, or are not all of one type.
        ValueError: their other axes differ.
    """
    first = values[0]
    kind = _kind(first)
    other = next((_kind(value) for value in values if _kind(value) is not kind), None)
    if other is not None:
        raise TypeError(
            f"pull: {name} is of type {kind.__name__} on one rank and of type {other.__name__} on "
            "another, which cannot be joined; pull it without join=True"
        )
    for value in values:
        _count(name, value, "pull")
    if kind is list:
        return [row for value in values for row in value]
    if kind is tuple:
        return tuple(row for value in values for row in value)
    for library, function in (("torch", "cat"), ("pandas", "concat"), ("numpy", "concatenate")):
        if library in _libraries_of(kind):
            return getattr(sys.modules[library], function)(list(values))
    raise TypeError(
        f"pull: values of type {kind.__name__}, such as {name}, cannot be joined; pull it without "
        "join=True"
    )


def _count(name: str, value: Any, method: str = "scatter") -> int:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        sizes = cast("tuple[int, ...]", shape)
        if sizes:
            return int(sizes[0])
    elif (
        not isinstance(value, _WITHOUT_ROWS)
        and hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
    ):
        return len(value)
    raise TypeError(
        f"{method}: {name} is of type {_kind(value).__name__} and has no rows: give an array, a "
        "tensor, a data frame or a list" + _INSTEAD.get(method, "")
    )


def _kind(value: object) -> type[Any]:
    return type(value)


def _libraries_of(kind: type[Any]) -> Iterator[str]:
    """The top-level modules of a class and its bases, as far as they are loaded."""
    for base in kind.__mro__:
        library = base.__module__.partition(".")[0]
        if library in sys.modules:
            yield library
