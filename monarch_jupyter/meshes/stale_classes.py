"""Finds actor classes, and code that they use, redefined while actors of the old classes live.

No I/O. A class uses the functions and classes of cells that its methods name, and the ones that
those name in turn.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

_NOT_CODE = {
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__classcell__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__qualname__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
    "_abc_monarch_definition",
}


def same_code(old: type, new: type) -> bool:
    """Whether two classes of one name would do the same, wherever their text stands.

    Parts that cannot be compared count as changed: a needless notice is better than none.
    """
    mine, theirs = _parts(old), _parts(new)
    return mine.keys() == theirs.keys() and all(_alike(mine[k], theirs[k]) for k in mine)


def used_by(cls: type) -> dict[str, Any]:
    """By name, the functions and classes of cells that a class uses, as they are now."""
    found: dict[str, Any] = {}
    todo: list[object] = [base for base in cls.__mro__ if base.__module__ == "__main__"]
    while todo:
        for function in _functions_of(todo.pop()):
            for name in _names_in(function.__code__):
                value = function.__globals__.get(name)
                if name not in found and value is not cls and _is_of_cells(value):
                    found[name] = value
                    todo.append(value)
    return found


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `before` that do something else now, by name."""
    return {
        name: now[name]
        for name, old in before.items()
        if name in now
        and now[name] is not old
        and _is_of_cells(now[name])
        and not _same(old, now[name])
    }


def old_bases(cls: type, namespace: Mapping[str, Any]) -> list[str]:
    """The bases that a class still has while there are others of their names."""
    named = {base.__name__: base for base in cls.__mro__[1:] if base.__module__ == "__main__"}
    return list(changed(named, namespace))


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, type) and isinstance(new, type):
        return same_code(old, new)
    return _alike(old, new)


def _is_of_cells(value: Any) -> bool:
    is_code = isinstance(value, type) or _function(value) is not None
    return is_code and getattr(value, "__module__", None) == "__main__"


def _functions_of(thing: object) -> Iterator[types.FunctionType]:
    """The functions that a class, a function or a descriptor consists of."""
    parts: list[Any] = list(vars(thing).values()) if isinstance(thing, type) else [thing]
    for part in parts:
        of_property = [part.fget, part.fset, part.fdel] if isinstance(part, property) else [part]
        for one in of_property:
            function = _function(getattr(one, "func", one))
            if function is not None:
                yield function


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _parts(cls: type) -> Mapping[str, Any]:
    return {name: value for name, value in vars(cls).items() if name not in _NOT_CODE}


def _alike(old: Any, new: Any) -> bool:
    if type(old) is not type(new):
        return False
    function, other = _function(old), _function(new)
    if function is not None and other is not None:
        return (
            _plain(function.__code__) == _plain(other.__code__)
            and function.__defaults__ == other.__defaults__
            and function.__kwdefaults__ == other.__kwdefaults__
        )
    try:
        return bool(old == new)
    except Exception:
        return False  # values that cannot be compared, such as arrays, count as changed


def _function(value: Any) -> types.FunctionType | None:
    value = getattr(value, "__wrapped__", getattr(value, "__func__", value))
    return value if isinstance(value, types.FunctionType) else None


def _plain(code: types.CodeType) -> types.CodeType:
    """The code without its position in the file."""
    constants = tuple(_plain(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    changes: dict[str, Any] = {"co_firstlineno": 1, "co_filename": "", "co_consts": constants}
    lines = "co_linetable" if hasattr(code, "co_linetable") else "co_lnotab"
    return cast("Any", code).replace(**changes, **{lines: b""})
