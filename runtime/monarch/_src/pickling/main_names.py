"""The names of classes and functions in a rank's `__main__`, if they came by value. No I/O.

Runs in: any process, on the thread that unpickles. A rank calls `begin` once. In other processes,
such as a client, `__main__` belongs to the user and nothing is entered.

A class or function of a cell or script has `__main__` as its module. pickle, `typing` and others
look for it there, so each one that comes is entered under its name; the newest wins. A name that
code on the rank has bound itself is never changed.
"""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import Any

MAIN = "__main__"
_entered: dict[str, Any] | None = None  # the last object entered under each name; None: disabled
_replaced: list[ModuleType] = []  # kept, because running functions use its names as globals


def begin() -> None:
    """Replace the runtime's `__main__` in this process by an empty one, for names that come."""
    global _entered
    _replaced.append(sys.modules[MAIN])
    main = sys.modules[MAIN] = ModuleType(MAIN)
    vars(main)["__builtins__"] = builtins
    _entered = {}


def enter(name: str, value: object) -> None:
    """Bind a name in `__main__`, unless code of the user has bound it."""
    if _entered is None or name.startswith("__"):
        return
    names = vars(sys.modules[MAIN])
    if name in names and (name not in _entered or names[name] is not _entered[name]):
        return
    names[name] = _entered[name] = value


def is_entered(name: str, value: object) -> bool:
    """Whether a name has that value because it came by value, not by code of the user."""
    return _entered is not None and name in _entered and _entered[name] is value


def has(value: Any) -> bool:
    """Whether `__main__` in this process has that very class or function under its own name.

    It has not if a decorator has wrapped it, or if it was defined anew since.
    """
    return value.__module__ == MAIN and vars(sys.modules[MAIN]).get(value.__name__) is value


def forget() -> None:
    """Remove the entered names from `__main__`, when the process ends."""
    global _entered
    entered, _entered = _entered or {}, None
    names = vars(sys.modules[MAIN])
    for name, value in entered.items():
        if names.get(name) is value:
            del names[name]
