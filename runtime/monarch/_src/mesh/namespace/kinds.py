"""How a kind of value is cut into rows and joined: see the table in `rows`. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple


class Trait(NamedTuple):
    """A property that a value and its parts share, and that the values of all ranks have alike."""

    name: str
    value: Any
    text: str = ""
    """The value as errors show it; empty: `str` of the value."""


class Kind(NamedTuple):
    """How values of one class are cut into rows and joined.

    A library may lose a property without an error. So parts and joined values are compared with the
    traits of the value that they come from.
    """

    cut: Callable[[Any, int, int], Any]
    """The rows of a value from one number up to another, which is left out."""
    join: Callable[[Sequence[Any]], Any]
    """Values with equal traits as one, along their first axis."""
    traits: Callable[[Any], Iterable[Trait]]
    problem: Callable[[Any], str | None] = lambda _: None
    """Why a value of this kind is not cut or joined, and the remedy; None if it is."""


def class_of(value: object) -> type[Any]:
    """The class, for type checkers: that of `Any` is not known to them."""
    return type(value)


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, by name; `vars`, typed."""
    return value.__dict__


def type_of(value: object) -> Trait:
    """The trait that nearly all kinds have."""
    return Trait("type", type(value), type(value).__name__)


def slice_of(value: Any, start: int, stop: int) -> Any:
    """The rows of a value that has slices of its own class."""
    return value[start:stop]


def attributes_problem(value: object, names: Iterable[str], function: str, hook: str) -> str | None:
    """Why a subclass with attributes needs a rule of its own; None without attributes."""
    listed = ", ".join(sorted(names))
    if not listed:
        return None
    return (
        f"has attributes ({listed}) for which {function} has no rule: give "
        f"{type(value).__name__} {hook} with one, or give a value without them"
    )
