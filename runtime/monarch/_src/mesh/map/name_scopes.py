"""Lets the code of a mapped callable use names of its rank's `__main__`. No I/O.

The rule. Code that was written in `__main__`, in a script or cell, arrives by value, with globals
of its own that hold the names it used at the sender. These globals get every name of the rank's
`__main__`, as if the code had been run there. Where they have such a name already, see below; a
function or class that an earlier message has left on the rank is no name of the rank's own, and
does not count. Code of a module of the program gets only the names that it uses and would not find,
neither in its module nor among the builtins, so that a pushed `type` changes no module. The globals
of code belong to the module that their `__name__` and `__file__` tell, not to the `__module__` of a
function, which decorators copy. No other globals are changed: those of the standard library, of
installed packages and of this runtime, be it a module or a copy that came by value. The code of a
callable is found through whatever wraps it: `__wrapped__`, bound methods, partials, closures,
defaults, attributes, registries such as those of `singledispatch`, and the members of the user's
classes; and through the names by which the user's code refers to further code. Of a container, the
search looks at 1000 items. It runs no code of the user, but for comparisons. A name that was bound
here for an earlier map is bound anew, unless the code has changed it.

A name that both have. Data of the rank counts: a rank has its part of what was scattered, or a
model that it has trained. Code of the sender counts, that is functions, classes, modules and what
wraps them: a function and its helpers are one program, and the rank's helper may be from before the
last change of it. A conflict is reported unless both values are the same. Functions are compared by
their code; other values by their pickles, so reductions of the user's classes may run.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import getattr_static
from itertools import islice
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, cast

import msgspec

from monarch._src.actor.serialize import pack_value
from monarch._src.pickling import main_names
from monarch._src.pickling.main_names import MAIN
from monarch._src.system.imports import is_of_the_program

_CODE = (
    FunctionType, BuiltinFunctionType, MethodType, type, ModuleType, functools.partial,
)  # fmt: skip
_DEEPEST = 20  # of functions in closures, defaults and wrappers
_COMPARED = 1 << 20  # bytes of a buffer at a time
MOST_ITEMS = 1000  # of one container; a program may hold long lists of data
_BOUND = "__monarch_bound__"  # in globals: the names that were bound here, with their values
_NOTHING = object()
_OF_SHELL = ("_", "get_ipython")  # every interactive session has its own
_CONTAINERS = (list, tuple, set, frozenset, dict, MappingProxyType)
_OF_CODE = (FunctionType, MethodType, property, staticmethod, classmethod)
_METHODS_IN_C = (BuiltinFunctionType, MethodWrapperType)


class Scope(msgspec.Struct):
    """Globals of the user's code. `names`: those that the code uses; None: it is `__main__`'s."""

    globals: dict[str, Any]
    names: set[str] | None


def bind(function: object, names: Mapping[str, Any]) -> Conflicts:
    """Let the code of a callable use these names of `__main__`, by the rule of this module.

    Returns the names that both have with different values.
    """
    conflicts = Conflicts()
    given = {name: value for name, value in names.items() if not name.startswith("__")}
    for scope in scopes_of(function):
        bound: dict[str, Any] = scope.globals.get(_BOUND, {})
        for name, value in given.items():
            if scope.names is not None and (name not in scope.names or hasattr(builtins, name)):
                continue
            own = scope.globals.get(name, _NOTHING)
            if own is not _NOTHING and own is not bound.get(name, _NOTHING):
                if scope.names is not None or name in bound:
                    continue  # it is a module's, or the code has changed it
                if name in _OF_SHELL or main_names.is_entered(name, value):
                    continue
                if not conflicts.add(name, value, own):
                    continue
            scope.globals[name] = bound[name] = value
        if bound:
            scope.globals[_BOUND] = bound
    return conflicts


def scopes_of(function: object) -> list[Scope]:
    """The globals that a callable's code needs names in, each once."""
    found: dict[int, Scope] = {}
    for one in _functions_of(function):
        if not _is_users(one.__globals__):
            continue
        used = None if _is_of_main(one.__globals__) else set(_names_of(one.__code__))
        scope = found.setdefault(id(one.__globals__), Scope(one.__globals__, used))
        if scope.names is not None and used is not None:
            scope.names |= used
    main = sys.modules.get(MAIN)
    return [scope for scope in found.values() if main is None or scope.globals is not vars(main)]


def _functions_of(first: object) -> Iterator[FunctionType]:
    """The functions that a callable may run, as far as the search of this module finds them."""
    waiting, seen = [first], dict[int, object]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one  # kept, so that its id stays valid
        if type(one) is FunctionType:
            yield one
        for part in _parts(one):
            waiting += _callables_in(part)


def _parts(one: Any) -> Iterator[object]:
    """The objects that a callable, or what wraps one, refers to.

    The type decides, and not `isinstance`: a proxy may claim to be of another class.
    """
    kind = cast("type[Any]", type(one))
    if kind is FunctionType:
        yield from _contents(one)
        yield from (one.__defaults__, one.__kwdefaults__, vars(one))
        if _is_users(one.__globals__):
            names = one.__globals__
            yield [names[name] for name in _names_of(one.__code__) if name in names]
    elif kind is MethodType:
        yield from (one.__func__, one.__self__)
    elif issubclass(kind, functools.partial):
        yield from (one.func, one.args, one.keywords)
        yield from _state_of(one)
    elif issubclass(kind, type):
        for cls in _mro(one):
            if _is_users_class(cls):
                yield from list(vars(cls).values())
        yield kind
    elif issubclass(kind, property):
        yield from (one.fget, one.fset, one.fdel)
    elif kind is not ModuleType and not kind.__module__.startswith("monarch."):
        yield from _state_of(one)


def _contents(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # its variable has no value yet


def _state_of(one: object) -> Iterator[object]:
    """The class of an object, its attributes and slots, read without code of the user.

    This includes `__wrapped__`, `__func__` and `func` of the wrappers in C and of descriptors.
    """
    kind = type(one)
    yield kind
    for cls in _mro(kind):
        for name, member in list(vars(cls).items()):
            if isinstance(member, MemberDescriptorType) or (
                name in ("__wrapped__", "__dict__") and isinstance(member, GetSetDescriptorType)
            ):
                try:
                    yield member.__get__(one, kind)
                except (AttributeError, ValueError):
                    continue  # a slot without a value
    self = getattr_static(one, "__self__", None)  # of a method of a class in C
    if isinstance(self, (GetSetDescriptorType, MemberDescriptorType)):
        yield self.__get__(one, kind)


def _callables_in(part: object) -> Iterable[object]:
    """The object if code may be behind it; of a container, such items, also one level deeper."""
    if type(part) in _CONTAINERS:
        found: list[object] = []
        for item in _items(part):
            found += _items(item) if type(item) in _CONTAINERS else (item,)
        return [item for item in found if _may_run(item)]
    return (part,) if _may_run(part) else ()


def _items(container: Any) -> list[object]:
    if isinstance(container, (dict, MappingProxyType)):
        container = cast("Mapping[object, object]", container).values()
    return list(islice(cast("Iterable[object]", container), MOST_ITEMS))


def _may_run(one: object) -> bool:
    kind = type(one)
    if kind.__module__ == "builtins" and kind not in _OF_CODE and not issubclass(kind, type):
        return kind in _METHODS_IN_C
    return callable(one) or any("__get__" in vars(cls) for cls in _mro(kind))


def _is_users(names: dict[str, Any]) -> bool:
    """Whether globals are those of code that the user has written."""
    return _is_of_main(names) or is_of_the_program(names.get("__file__"))


def _is_of_main(names: dict[str, Any]) -> bool:
    return names.get("__name__", MAIN) in (MAIN, "__mp_main__")


def _is_users_class(cls: type[Any]) -> bool:
    """Whether to look at its members. A class by value may be of a module that is missing here."""
    if cls.__module__ in (MAIN, "__mp_main__") or cls.__module__ not in sys.modules:
        return True
    return is_of_the_program(getattr(sys.modules[cls.__module__], "__file__", None))


def _mro(cls: type[Any]) -> tuple[type[Any], ...]:
    return type.__dict__["__mro__"].__get__(cls)


def _names_of(code: CodeType) -> Iterator[str]:
    """The globals and attributes that code names, those of nested code included."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_of(inner)


# --- the value that counts, where both have a name ------------------------------------------------


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
        return _all_same(_content(one), _content(other), depth - 1)
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


def _content(cell: CellType) -> tuple[object, ...]:
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
