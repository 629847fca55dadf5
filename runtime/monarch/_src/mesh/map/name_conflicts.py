"""Names that a mapped function brings along, and its rank has too: the value that counts. No I/O.

Data of the rank counts: a rank has its part of what was scattered, or a model that it has trained.
Code of the sender counts, that is functions, classes, modules and what wraps them: a function and
its helpers are one program, and the rank's helper may be from before the last change of it.

A conflict is reported unless both values are the same. Functions are compared by their code; other
values by their pickles, so reductions of the user's classes may run.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from inspect import getattr_static
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, cast

import msgspec

from monarch._src.actor.serialize import pack_value

_CODE = (
    FunctionType, BuiltinFunctionType, MethodType, type, ModuleType, functools.partial,
)  # fmt: skip
_DEEPEST = 20  # of functions in closures, defaults and wrappers
_COMPARED = 1 << 20  # bytes of a buffer at a time


class Conflicts(msgspec.Struct, array_like=True):
    """The names with different values: those that the rank's count for, and the sender's."""

    of_rank: list[str] = msgspec.field(default_factory=list[str])
    of_sender: list[str] = msgspec.field(default_factory=list[str])

    def add(self, name: str, rank: object, sender: object) -> bool:
        """Enter a name that both have; returns whether the rank's value counts."""
        code = is_code(sender)
        if not are_same(rank, sender):
            (self.of_sender if code else self.of_rank).append(name)
        return not code

    def texts(self, function: str, mesh: str) -> list[str]:
        """A line for the names whose values on the rank count, and one for the others."""
        lines: list[str] = []
        if self.of_rank:
            names, differ, them = _worded(self.of_rank)
            given = ", ".join(f"{name}={name}" for name in self.of_rank)
            lines.append(
                f"{function} uses {names} of the ranks of {mesh}, which {differ} of this program; "
                f"to use this program's, call {mesh}.push({given}) or rename {them} here"
            )
        if self.of_sender:
            names, differ, them = _worded(self.of_sender)
            lines.append(
                f"{function} uses {names} of this program, which {differ} of the ranks of {mesh}; "
                f"to use the ranks' own, rename {them} there"
            )
        return lines


def is_code(value: object) -> bool:
    """Whether a value is a function, a class or a module, or wraps a function."""
    # Not by `isinstance`: a proxy may claim to be of another class.
    kind = cast("type[Any]", type(value))
    return issubclass(kind, _CODE) or getattr_static(value, "__wrapped__", None) is not None


def are_same(one: Any, other: Any, depth: int = _DEEPEST) -> bool:
    """Whether two values are the same, as far as that can be seen."""
    if one is other:
        return True
    kind = cast("type[Any]", type(one))
    if kind is not type(other) or not depth:
        return False
    if kind is FunctionType:
        return _plain_code(one.__code__) == _plain_code(other.__code__) and _all_same(
            (one.__defaults__, one.__kwdefaults__, *(one.__closure__ or ())),
            (other.__defaults__, other.__kwdefaults__, *(other.__closure__ or ())), depth - 1,
        )  # fmt: skip
    if kind is CellType:
        return _all_same(_contents(one), _contents(other), depth - 1)
    if kind is MethodType:
        return _all_same((one.__func__, one.__self__), (other.__func__, other.__self__), depth - 1)
    if issubclass(kind, functools.partial):
        return _all_same(
            (one.func, *one.args, one.keywords), (other.func, *other.args, other.keywords),
            depth - 1,
        )  # fmt: skip
    if issubclass(kind, (type, ModuleType)):
        return False  # a process has only one of each
    if is_code(one):
        return are_same(
            getattr_static(one, "__wrapped__", None), getattr_static(other, "__wrapped__", None),
            depth - 1,
        )  # fmt: skip
    return _are_pickled_alike(one, other)


def _all_same(some: Sequence[object], others: Sequence[object], depth: int) -> bool:
    return len(some) == len(others) and all(
        are_same(one, other, depth) for one, other in zip(some, others, strict=True)
    )


def _contents(cell: CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()  # its variable has no value yet


def _plain_code(code: CodeType) -> CodeType:
    """The code without its place in a file."""
    constants = [_plain_code(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.replace(
        co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=tuple(constants)
    )


def _are_pickled_alike(one: object, other: object) -> bool:
    try:
        first, second = pack_value(one, loose=True), pack_value(other, loose=True)
        return first.body == second.body and _equal_buffers(first.buffers, second.buffers)
    except Exception:
        return False


def _equal_buffers(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(
        len(one) == len(other)
        and all(
            # Slices of bytes are compared faster than views.
            bytes(one[at : at + _COMPARED]) == bytes(other[at : at + _COMPARED])
            for at in range(0, len(one), _COMPARED)
        )
        for one, other in zip(some, others, strict=True)
    )


def _worded(names: Sequence[str]) -> tuple[str, str, str]:
    if len(names) == 1:
        return names[0], "differs from that", "it"
    return f"{', '.join(names[:-1])} and {names[-1]}", "differ from those", "them"
