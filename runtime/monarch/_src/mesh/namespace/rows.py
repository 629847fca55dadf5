"""Values that have rows: arrays, tensors, data frames and sequences, cut and joined. No I/O.

A value either comes back as it was, with its class and properties, or is refused: see `KINDS`. No
array library is imported here. A value of one is known by the names of its class and bases, and
its library is loaded already.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import accumulate
from typing import Any, TypeVar

from monarch._src.mesh.namespace import array_rows, pandas_rows, sequence_rows, torch_rows
from monarch._src.mesh.namespace.kinds import Kind, Trait, class_of

KINDS: dict[str, Kind] = {
    "builtins.list": sequence_rows.LIST,
    "builtins.tuple": sequence_rows.TUPLE,
    "builtins.range": sequence_rows.RANGE,
    "builtins.bytes": sequence_rows.BYTES,
    "builtins.bytearray": sequence_rows.BYTEARRAY,
    "array.array": sequence_rows.ARRAY,
    "numpy.ndarray": array_rows.NDARRAY,  # and its subclasses: matrix, recarray, memmap, ...
    "numpy.MaskedArray": array_rows.MASKED,
    "numpy.MaskedRecords": array_rows.MASKED_RECORDS,
    "pandas.DataFrame": pandas_rows.FRAME,
    "pandas.Series": pandas_rows.FRAME,
    "pandas.Index": pandas_rows.INDEX,
    "pandas.ExtensionArray": pandas_rows.EXTENSION_ARRAY,
    "scipy.spmatrix": array_rows.SPARSE,
    "scipy.sparray": array_rows.SPARSE,
    "torch.Tensor": torch_rows.TENSOR,
    "torch.Parameter": torch_rows.PARAMETER,
}
"""By library and name of a class. A subclass is of the kind of its nearest base in this table."""

_INSTEAD = {
    "scatter": "or push all of it and let each rank take its own",
    "pull": "or pull it without join=True",
}
_GIVE = "give an array, a tensor, a data frame or a list"
_REMEDY = "convert it first"
_LONGEST = 300  # characters of a property in an error
_WITHOUT_ROWS: tuple[type[Any], ...] = (str, Mapping, Set, type)
_T = TypeVar("_T")


def part_sizes(rows: int, parts: int) -> list[int]:
    """The number of rows of each part: equal, or one more in the first of them."""
    size, rest = divmod(rows, parts)
    return [size + (at < rest) for at in range(parts)]


def cut(name: str, value: Any, parts: int) -> list[Any]:
    """The value in parts along its first axis, each with consecutive rows; see `part_sizes`.

    The parts of an array, tensor or data frame are views of it.

    Raises:
        TypeError: the value has no rows, or its class would be lost.
        ValueError: a property of the value would be lost.
    """
    kind = _kind_of("scatter", name, value)
    ends = list(accumulate(part_sizes(row_count(value), parts)))
    bounds = list(zip([0, *ends], ends, strict=False))
    cuts = _tried("scatter", name, lambda: [kind.cut(value, *bound) for bound in bounds])
    _check_kept("scatter", name, kind, value, cuts[0])
    return cuts


def join(name: str, values: Sequence[Any], place: Callable[[int], str]) -> Any:
    """The values of all ranks, in order, as one along their first axis: what `cut` has cut.

    Args:
        place: names the rank of a value, by its number in `values`, for errors.

    Raises:
        TypeError: the values have no rows, are not all of one type, or would lose it.
        ValueError: the values differ in a property, such as dtype, columns or the other axes.
    """
    kinds = [_kind_of("pull", name, value) for value in values]
    first, kind = values[0], kinds[0]
    traits = list(kind.traits(first))
    for at in range(1, len(values)):
        found = _difference(traits, kinds[at].traits(values[at]))
        if found is not None:
            one, other = found
            raise _error_of(one)(
                f"pull: {name} has the {one.name} {_shown(one)} on {place(0)} and the "
                f"{other.name} {_shown(other)} on {place(at)}: make them equal there, "
                f"{_INSTEAD['pull']}"
            )
    joined = _tried("pull", name, lambda: kind.join(values))
    _check_kept("pull", name, kind, first, joined)
    return joined


def _kind_of(method: str, name: str, value: Any) -> Kind:
    """The kind of a value that can be cut and joined.

    Raises:
        TypeError: the value is of no kind, or its kind refuses it.
    """
    cls = class_of(value)
    names = (f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in cls.__mro__)
    kind = next((KINDS[known] for known in names if known in KINDS), None)
    problem = kind.problem(value) if kind else None
    if problem is not None:
        raise TypeError(f"{method}: {name}, of type {cls.__name__}, {problem}, {_INSTEAD[method]}")
    if not _has_rows(value):
        raise TypeError(
            f"{method}: {name} is of type {cls.__name__} and has no rows: {_GIVE}, "
            f"{_INSTEAD[method]}"
        )
    if kind is None:
        raise TypeError(
            f"{method}: {name} is of type {cls.__module__}.{cls.__name__}, for whose rows there is "
            f"no rule: {_GIVE}, {_INSTEAD[method]}"
        )
    return kind


def _has_rows(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return shape != ()
    return hasattr(value, "__len__") and not isinstance(value, _WITHOUT_ROWS)


def row_count(value: Any) -> int:
    """The number of rows of a value that `cut` takes."""
    shape: Any = getattr(value, "shape", None)
    return int(shape[0]) if shape else len(value)  # scipy's matrices have no length


def _tried(method: str, name: str, function: Callable[[], _T]) -> _T:
    """The result of a function of a library, or its error with the name of the value."""
    try:
        return function()
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        doing = "cut" if method == "scatter" else "joined"
        raise kind(
            f"{method}: {name} cannot be {doing}: {error}: {_REMEDY}, {_INSTEAD[method]}"
        ) from error


def _check_kept(method: str, name: str, kind: Kind, before: Any, after: Any) -> None:
    """Refuse a result of a library that has lost a property."""
    found = _difference(list(kind.traits(before)), kind.traits(after))
    if found is not None:
        one, other = found
        raise _error_of(one)(
            f"{method}: {name} has the {one.name} {_shown(one)} and would get the {other.name} "
            f"{_shown(other)}: {_GIVE}, {_INSTEAD[method]}"
        )


def _difference(traits: Sequence[Trait], others: Iterable[Trait]) -> tuple[Trait, Trait] | None:
    """The first pair that differs. A trait that decides how many there are comes before them."""
    for one, other in zip(traits, others, strict=False):
        if one.name != other.name or not _same(one.value, other.value):
            return one, other
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, type) or one is other:
        return one is other
    try:
        if bool(one.equals(other) if hasattr(one, "equals") else one == other):
            return True
    except ValueError:  # of arrays in it, which have no single answer
        pass
    # NaN in it is equal to itself here.
    return pickle.dumps(one) == pickle.dumps(other)


def _shown(trait: Trait) -> str:
    text = trait.text or str(trait.value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _error_of(trait: Trait) -> type[Exception]:
    return TypeError if trait.name == "type" else ValueError
