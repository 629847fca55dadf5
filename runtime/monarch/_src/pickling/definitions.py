"""The definition of a class that came by value, and when it has changed. No I/O.

Runs in: the process that received the class, on the thread that unpickles.

An attribute is *code* (a function, a method, a property, another descriptor, a class), a *constant*
(a number, text, bytes, `None`, a tuple or frozenset of those) or *state* (everything else: lists,
dicts, objects). The definition of a class is the code and the constants that came last, with the
global names that the code uses. Two definitions are the same if

- they have the same names, each with the same kind of attribute,
- their constants are equal and of the same types,
- their functions have equal byte code (line numbers included), defaults and closures, and the
  globals that they use are the same by these rules. There, a list, dict or set of constants counts
  as the same if it is as the last one was when it came, whatever this process has made of that
  since. Other state has to be the same object, which one from a message never is.

A changed definition is applied attribute by attribute: all code together, so that methods continue
to share their globals, but only those constants that have changed. State is given once, with the
class itself. Attributes that this process has assigned are kept, including code and constants: they
are recognised because they are not the object that came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

# `typing` counts any attribute as a member of a protocol, except those with this prefix.
DEFINITION = "_abc_monarch_definition"
_ATOMS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
_MISSING = object()
_DEEPEST = 20
_CONTAINERS = (list, dict, set)
_MOST_ITEMS = 10_000


class Definition:
    """The definition that was last applied to a class, kept in the class itself.

    applied: the attributes. used: the values in each dict of globals of its functions. came: by the
    `id` of a list, dict or set that its functions use, its content at the time.
    """

    __slots__ = ("applied", "came", "used")

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.take(attributes)

    def take(self, attributes: dict[str, Any]) -> None:
        """Record the attributes that are applied now."""
        self.applied = dict(attributes)
        self.used: dict[int, dict[str, Any]] = {}
        self.came: dict[int, Any] = {}
        for value in attributes.values():
            for function in functions_in(value):
                names = function.__globals__
                if id(names) not in self.used:
                    self.used[id(names)] = dict(names)
                for held in _state_of(function):
                    self.came[id(held)] = _frozen(held)


def redefine(
    cls: type[Any],
    definition: Definition,
    attributes: dict[str, Any],
    assign: Callable[[type[Any], str, Any], None],
    remove: Callable[[type[Any], str], None],
) -> bool:
    """Apply the changes; returns whether there are any. `attributes`: those that came now."""
    before, own = definition.applied, vars(cls)
    ours = {name for name, value in before.items() if own.get(name, _MISSING) is not value}
    code = {n: v for n, v in attributes.items() if _is_code(v)}
    old_code = {n: v for n, v in before.items() if _is_code(v)}
    compare = _Comparison(definition.used, definition.came)
    changed: dict[str, Any] = {}
    if code.keys() != old_code.keys() or any(
        not compare.same(old_code[name], value) for name, value in code.items()
    ):
        changed.update(code)
    for name, value in attributes.items():
        if name in code:
            continue
        was = before.get(name, _MISSING)
        is_constant = _is_constant(value)
        if (
            was is _MISSING
            or _is_code(was)
            or _is_constant(was) != is_constant
            or (is_constant and not compare.same(was, value))
        ):
            changed[name] = value
    gone = [name for name in before if name not in attributes]
    if not changed and not gone:
        return False
    # An attribute of this process that never came from elsewhere is not in `before`.
    for name, value in changed.items():
        if name not in ours and (name in before or name not in own):
            assign(cls, name, value)
    for name in gone:
        if name not in ours:
            remove(cls, name)
    kept = {name: before[name] for name in before if name in attributes and name not in changed}
    definition.take({**kept, **changed})
    return True


def functions_in(value: Any, depth: int = 4) -> Iterator[FunctionType]:
    """The functions that an attribute consists of."""
    if isinstance(value, FunctionType):
        yield value
        if not depth:
            return
        for cell in value.__closure__ or ():
            content = _content(cell)
            if isinstance(content, FunctionType):
                yield from functions_in(content, depth - 1)
    elif depth:
        for part in _parts(value):
            yield from functions_in(part, depth - 1)


def _is_code(value: Any) -> bool:
    if isinstance(value, (FunctionType, type)):
        return True
    kind = cast("type[Any]", type(value))
    return hasattr(kind, "__get__") and kind.__name__ != "member_descriptor"


def _is_constant(value: Any, depth: int = 4) -> bool:
    if isinstance(value, (tuple, frozenset)):
        items = cast("tuple[Any, ...]", value)
        return bool(depth) and all(_is_constant(item, depth - 1) for item in items)
    return isinstance(value, _ATOMS)


def _parts(value: Any) -> Iterator[Any]:
    """The parts of a descriptor."""
    if isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, (staticmethod, classmethod)):
        yield cast(Any, value).__func__
    elif not isinstance(value, type) and hasattr(cast(Any, type(value)), "__get__"):
        # Its other attributes may be derived from these: a signature, a lock.
        for name, part in sorted(getattr(value, "__dict__", {}).items()):
            if name != "__wrapped__" and (_is_code(part) or _is_constant(part)):
                yield part
        yield getattr(value, "__wrapped__", None)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _state_of(function: FunctionType) -> Iterator[Any]:
    """The lists, dicts and sets among a function's globals, defaults and closure."""
    names = function.__globals__
    held = [names[name] for name in names_in(function.__code__) if name in names]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    held += map(_content, function.__closure__ or ())
    yield from (value for value in held if type(value) in _CONTAINERS)


def _frozen(value: Any) -> Any:
    """The content of a list, dict or set of constants; None if it is too large or holds others."""
    left = [_MOST_ITEMS]

    def frozen(one: Any, depth: int) -> Any:
        left[0] -= 1
        if left[0] < 0 or not depth:
            raise _NotPlain
        if isinstance(one, _ATOMS):
            return type(one), repr(one)
        if type(one) in (list, tuple):
            return type(one), [frozen(item, depth - 1) for item in list(one)]
        if type(one) in (set, frozenset):
            return type(one), sorted(repr(frozen(item, depth - 1)) for item in list(one))
        if type(one) is dict:
            items = list(cast("dict[Any, Any]", one).items())
            return dict, [(frozen(k, depth - 1), frozen(v, depth - 1)) for k, v in items]
        raise _NotPlain

    try:
        return frozen(value, _DEEPEST)
    except (_NotPlain, RuntimeError):  # RuntimeError: another thread has changed it meanwhile
        return None


class _NotPlain(Exception):
    """A value is no list, dict or set of constants, or too large a one."""


class _Comparison:
    """Compares applied attributes with new ones, by the rules in the module's docstring."""

    def __init__(self, used: dict[int, dict[str, Any]], came: dict[int, Any]) -> None:
        self._used = used
        self._came = came
        self._compared: set[tuple[int, int]] = set()

    def same(self, old: Any, new: Any, depth: int = _DEEPEST) -> bool:
        """Whether two attributes, globals or parts of such are the same."""
        if old is new:
            return True
        if type(old) is not type(new) or not depth:
            return False
        pair = id(old), id(new)
        if pair in self._compared:  # a cycle: a difference is found elsewhere
            return True
        if isinstance(old, FunctionType):
            self._compared.add(pair)
            return self._same_function(old, new, depth - 1)
        if isinstance(old, CodeType):
            return old == new
        if isinstance(old, (type, ModuleType)):
            return False  # a process has only one of each
        if _is_constant(old):
            return _is_constant(new) and _same_constants(old, new)
        if type(old) in _CONTAINERS:
            before = self._came.get(id(old))
            return before is not None and before == _frozen(new)
        if isinstance(old, tuple):
            return self._same_all(cast("tuple[Any, ...]", old), new, depth - 1)
        if _is_code(old):
            self._compared.add(pair)
            return self._same_all(tuple(_parts(old)), tuple(_parts(new)), depth - 1)
        return False

    def _same_all(self, old: tuple[Any, ...], new: tuple[Any, ...], depth: int) -> bool:
        return len(old) == len(new) and all(
            self.same(one, other, depth) for one, other in zip(old, new, strict=True)
        )

    def _same_function(self, old: FunctionType, new: FunctionType, depth: int) -> bool:
        if old.__code__ != new.__code__:
            return False
        if not self.same(old.__defaults__ or (), new.__defaults__ or (), depth):
            return False
        mine, others = old.__kwdefaults__ or {}, new.__kwdefaults__ or {}
        if not self.same(tuple(sorted(mine.items())), tuple(sorted(others.items())), depth):
            return False
        cells = tuple(map(_content, old.__closure__ or ()))
        if not self._same_all(cells, tuple(map(_content, new.__closure__ or ())), depth):
            return False
        was, now = self._used.get(id(old.__globals__)), new.__globals__
        if was is None:
            return False
        return all(
            name not in now or (name in was and self.same(was[name], now[name], depth))
            for name in names_in(old.__code__)
        )


def names_in(code: CodeType) -> Iterator[str]:
    """The names that code, and code in it, may look up in its globals."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_in(inner)


def _same_constants(old: Any, new: Any) -> bool:
    return type(old) is type(new) and old == new and repr(old) == repr(new)
