"""What a class that came by value is defined as, and when that has changed. No I/O.

Runs in: the process to which a class came, on the thread that unpickles.

An attribute is *code* (a function, a method, a property, another descriptor, a class), a *constant*
(a number, text, bytes, `None`, a tuple or frozenset of those) or *state* (everything else: lists,
dicts, objects). The definition of a class is the code and the constants as they last came, with the
global names that the code uses. Two definitions are the same if

- they have the same names, each with the same kind of attribute,
- their constants are equal and of the same types,
- their functions have equal byte code (line numbers included), defaults and closures, and what they
  use of their globals is the same by these rules; a global that is state counts as the same only if
  it is the same object, as what has come in a message never is.

A definition that has changed is applied attribute by attribute: all code together, so that methods
go on to share their globals; of constants those that have changed. State is given once, with the
class itself. What this process has bound itself stays, code and constants too: an attribute that is
not the object that came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

# `typing` takes all names in a protocol for what it asks for, but those that begin so.
DEFINITION = "_abc_monarch_definition"
_ATOMS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
_MISSING = object()
_DEEPEST = 20


class Definition:
    """What was last applied to a class, kept in the class itself.

    applied: the attributes. used: of each dict of globals that its functions have, the values.
    """

    __slots__ = ("applied", "used")

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.take(attributes)

    def take(self, attributes: dict[str, Any]) -> None:
        """These are applied now."""
        self.applied = dict(attributes)
        self.used: dict[int, dict[str, Any]] = {}
        for value in attributes.values():
            for function in functions_in(value):
                names = function.__globals__
                if id(names) not in self.used:
                    self.used[id(names)] = dict(names)


def redefine(
    cls: type[Any],
    definition: Definition,
    attributes: dict[str, Any],
    assign: Callable[[type[Any], str, Any], None],
    remove: Callable[[type[Any], str], None],
) -> bool:
    """Apply what has changed; whether anything has. `attributes`: as they came now."""
    before, own = definition.applied, vars(cls)
    ours = {name for name, value in before.items() if own.get(name, _MISSING) is not value}
    code = {n: v for n, v in attributes.items() if _is_code(v)}
    old_code = {n: v for n, v in before.items() if _is_code(v)}
    compare = _Comparison(definition.used)
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
    # One that is ours but has no value from elsewhere yet is not among `before`.
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
    """What a descriptor is made of."""
    if isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, (staticmethod, classmethod)):
        yield cast(Any, value).__func__
    elif not isinstance(value, type) and hasattr(cast(Any, type(value)), "__get__"):
        # Beside functions and constants it may have what it derives from them: a signature, a lock.
        for name, part in sorted(getattr(value, "__dict__", {}).items()):
            if name != "__wrapped__" and (_is_code(part) or _is_constant(part)):
                yield part
        yield getattr(value, "__wrapped__", None)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


class _Comparison:
    """Of attributes that were applied with those that came; see the module's text."""

    def __init__(self, used: dict[int, dict[str, Any]]) -> None:
        self._used = used
        self._compared: set[tuple[int, int]] = set()

    def same(self, old: Any, new: Any, depth: int = _DEEPEST) -> bool:
        """Whether two attributes, globals or parts of such are the same."""
        if old is new:
            return True
        if type(old) is not type(new) or not depth:
            return False
        pair = id(old), id(new)
        if pair in self._compared:  # it refers to itself; what differs is found where it stands
            return True
        if isinstance(old, FunctionType):
            self._compared.add(pair)
            return self._same_function(old, new, depth - 1)
        if isinstance(old, CodeType):
            return old == new
        if isinstance(old, (type, ModuleType)):
            return False  # a process has one of each
        if _is_constant(old):
            return _is_constant(new) and _same_constants(old, new)
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
