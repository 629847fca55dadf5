"""Rows of numpy's arrays, their subclasses, and scipy's sparse arrays and matrices. No I/O.

Neither library is imported here: with a value of it, it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from monarch._src.mesh.namespace.kinds import (
    Kind,
    Trait,
    attributes_of,
    attributes_problem,
    class_of,
    slice_of,
    type_of,
)
from monarch._src.pickling.array_reductions import info_of, own_attributes

# Kinds of dtypes of which a wider one has all values of a narrower one: integers, unsigned
# integers, floats, complex numbers, text and bytes. Between kinds numpy loses values: int64 and
# float64 become float64, numbers and text become text.
_WIDENING = "iufcUS"
_FORMATS = ("coo", "csc", "csr", "dok", "lil")


def _numpy() -> Any:
    return sys.modules["numpy"]


def dtype_of(value: Any) -> Trait:
    """The dtype; two of one kind are equal if the wider one has all values of the other."""
    dtype = value.dtype
    kind = dtype.kind if dtype.kind in _WIDENING else dtype
    return Trait("dtype", (kind, dict(dtype.metadata or {})), str(dtype))


def _traits(value: Any) -> Iterator[Trait]:
    yield type_of(value)
    yield dtype_of(value)
    yield Trait("row shape", value.shape[1:])


def _has_rule(kind: type[Any]) -> bool:
    """Whether a class says itself how its arrays are concatenated."""
    return kind.__array_function__ is not _numpy().ndarray.__array_function__


def _problem(value: Any) -> str | None:
    if _has_rule(class_of(value)):
        return None
    return attributes_problem(
        value, own_attributes(value), "numpy.concatenate", "an __array_function__"
    )


def _joined(values: Sequence[Any]) -> Any:
    kind: type[Any] = class_of(values[0])
    if _has_rule(kind):
        return _numpy().concatenate(list(values))
    # numpy makes most subclasses a plain array, so their elements are joined and viewed as before.
    return _elements([value.view(_numpy().ndarray) for value in values]).view(kind)


def _elements(arrays: Sequence[Any]) -> Any:
    dtype = arrays[0].dtype
    if all(array.dtype == dtype for array in arrays):
        # Given its dtype, numpy keeps the byte order and the metadata.
        return _numpy().concatenate(arrays, dtype=dtype)
    return _numpy().concatenate(arrays)


# --- masked arrays --------------------------------------------------------------------------------


def _traits_of_masked(value: Any) -> Iterator[Trait]:
    yield from _traits(value)
    fill, default = _fill_value(value), _fill_value(_ma().array([], dtype=value.dtype))
    yield Trait("fill_value", "default" if fill == default else fill, fill)
    yield Trait("hard mask", bool(value.hardmask))
    yield Trait("type of data", value.baseclass, value.baseclass.__name__)
    yield Trait("_optinfo", info_of(value))


def _ma() -> Any:
    return sys.modules["numpy.ma"]


def _fill_value(value: Any) -> str:
    fill = value.fill_value
    # As text, in which one NaN equals another. That of objects is any object.
    return repr(fill.tolist() if hasattr(fill, "tolist") else fill)


def _problem_of_masked(value: Any) -> str | None:
    return _problem(value) or _problem(value.data)


def _joined_masked(values: Sequence[Any]) -> Any:
    first, ma = values[0], _ma()
    if _has_rule(class_of(first)):
        return _numpy().concatenate(list(values))
    joined = _joined([value.data for value in values]).view(class_of(first))
    if any(ma.getmask(value) is not ma.nomask for value in values):
        joined.mask = _numpy().concatenate([ma.getmaskarray(value) for value in values])
    if next(t for t in _traits_of_masked(first) if t.name == "fill_value").value != "default":
        joined.fill_value = first.fill_value
    if first.hardmask:
        joined.harden_mask()
    info = info_of(first)
    attributes_of(joined)["_optinfo"].update(info)
    attributes_of(joined).update(info)
    return joined


def _problem_of_records(_: Any) -> str:
    return "is not joined by numpy: give its view(numpy.ma.MaskedArray)"


NDARRAY = Kind(slice_of, _joined, _traits, _problem)
MASKED = Kind(slice_of, _joined_masked, _traits_of_masked, _problem_of_masked)
MASKED_RECORDS = Kind(slice_of, _joined_masked, _traits_of_masked, _problem_of_records)


# --- sparse matrices and arrays -------------------------------------------------------------------


def _problem_of_sparse(value: Any) -> str | None:
    if type(value).__module__.partition(".")[0] != "scipy":
        return "is of a subclass, which scipy makes its own class: give one of scipy's"
    if value.format not in _FORMATS:
        return f"is sparse in the format {value.format}, which scipy does not cut: give its tocsr()"
    if len(value.shape) != 2:
        return "is sparse and not of two dims, so scipy does not stack it: give its toarray()"
    return None


def _rows_of_sparse(value: Any, start: int, stop: int) -> Any:
    if value.format == "coo":
        return value.tocsr()[start:stop].tocoo()
    return value[start:stop]


def _joined_sparse(values: Sequence[Any]) -> Any:
    return sys.modules["scipy.sparse"].vstack(list(values), format=values[0].format)


SPARSE = Kind(_rows_of_sparse, _joined_sparse, _traits, _problem_of_sparse)
