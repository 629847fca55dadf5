"""Actor classes that were defined anew while actors of the old ones live. No I/O."""

from __future__ import annotations

import types
from collections.abc import Mapping
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
}


def same_code(old: type, new: type) -> bool:
    """Whether two classes of one name would do the same, wherever their text stands.

    What can't be compared counts as changed: then one is told once too often.
    """
    mine, theirs = _parts(old), _parts(new)
    return mine.keys() == theirs.keys() and all(_alike(mine[k], theirs[k]) for k in mine)


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
        return False  # what cannot be compared, an array say, counts as changed


def _function(value: Any) -> types.FunctionType | None:
    value = getattr(value, "__wrapped__", getattr(value, "__func__", value))
    return value if isinstance(value, types.FunctionType) else None


def _plain(code: types.CodeType) -> types.CodeType:
    """The code without where it stands."""
    constants = tuple(_plain(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    changes: dict[str, Any] = {"co_firstlineno": 1, "co_filename": "", "co_consts": constants}
    lines = "co_linetable" if hasattr(code, "co_linetable") else "co_lnotab"
    return cast("Any", code).replace(**changes, **{lines: b""})
