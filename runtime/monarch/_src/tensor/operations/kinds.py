"""The kinds of instructions of this process, and their numbers."""

from __future__ import annotations

import itertools
from typing import Any

from monarch._src.tensor.state.instructions import NOTHING, ONE, Kind, Layout

_numbers = itertools.count(1)
_own: dict[tuple[Any, ...], Kind] = {}


def new_kind(
    operation: str, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...] = (),
    stores: int = ONE, kept: tuple[int, ...] = (), mutated: tuple[int, ...] = (),
    default_dtype: Any = None, layouts: tuple[Layout | None, ...] = (),
) -> Kind:  # fmt: skip
    """A new kind with a number of its own."""
    return Kind(
        next(_numbers), operation, args, kwargs, stores, kept, mutated, default_dtype, layouts
    )


def own_kind(operation: str, *args: Any, stores: int = ONE, mutated: tuple[int, ...] = ()) -> Kind:
    """The kind of an operation of the runner, with these arguments."""
    key = (operation, args, stores, mutated)
    found = _own.get(key)
    if found is None:
        found = _own[key] = new_kind(operation, args, (), stores, (), mutated)
    return found


def kind_with_outputs(operation: str, count: int, *args: Any) -> Kind:
    """The kind of an operation of the runner that returns a sequence of `count` results."""
    from monarch._src.tensor.state.instructions import MANY

    if not count:
        return own_kind(operation, *args, stores=NOTHING)
    key = (operation, args, MANY, count)
    found = _own.get(key)
    if found is None:
        found = _own[key] = new_kind(operation, args, (), MANY, tuple(range(count)))
    return found
