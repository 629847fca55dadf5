"""Rows of sparse matrices and sparse arrays of scipy. No I/O.

scipy is not imported here: with a value of it, it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from monarch._src.mesh.namespace.kinds import Kind, Trait, type_of
from monarch._src.mesh.namespace.numpy_rows import dtype_of

_FORMATS = ("coo", "csc", "csr", "dok", "lil")


def _traits(value: Any) -> Iterator[Trait]:
    yield type_of(value)
    yield dtype_of(value)
    yield Trait("row shape", value.shape[1:])


def _problem(value: Any) -> str | None:
    if type(value).__module__.partition(".")[0] != "scipy":
        return "is of a subclass, which scipy makes its own class: give one of scipy's"
    if value.format not in _FORMATS:
        return f"is sparse in the format {value.format}, which scipy does not cut: give its tocsr()"
    if len(value.shape) != 2:
        return "is sparse and not of two dims, so scipy does not stack it: give its toarray()"
    return None


def _rows(value: Any, start: int, stop: int) -> Any:
    if value.format == "coo":
        return value.tocsr()[start:stop].tocoo()
    return value[start:stop]


def _joined(values: Sequence[Any]) -> Any:
    return sys.modules["scipy.sparse"].vstack(list(values), format=values[0].format)


SPARSE = Kind(_rows, _joined, _traits, _problem)
