"""The names in a rank's `__main__` of what has come by value. No I/O.

Runs in: any process, on the thread that unpickles. A rank calls `begin` once; elsewhere, in a
client above all, `__main__` is the user's own and nothing is entered.

A class or function of a cell or script says that it is of `__main__`. pickle, `typing` and much
else look there for it, so what comes is entered under its name, the newest last. A name that code
on the rank has bound itself is never changed.
"""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import Any

MAIN = "__main__"
_entered: dict[str, Any] | None = None  # what was entered last under each name; None: off
_replaced: list[ModuleType] = []  # functions that run have its names as their globals


def begin() -> None:
    """Give this process an empty `__main__` in place of the runtime's, for names that come."""
    global _entered
    _replaced.append(sys.modules[MAIN])
    main = sys.modules[MAIN] = ModuleType(MAIN)
    vars(main)["__builtins__"] = builtins
    _entered = {}


def enter(name: str, value: object) -> None:
    """Bind a name in `__main__`, unless it is bound there to what this module has not entered."""
    if _entered is None or name.startswith("__"):
        return
    names = vars(sys.modules[MAIN])
    if name in names and (name not in _entered or names[name] is not _entered[name]):
        return
    names[name] = _entered[name] = value


def has(value: Any) -> bool:
    """Whether a class or function stands in `__main__` here under its own name.

    One that a decorator has wrapped does not, nor one that was defined anew since.
    """
    return value.__module__ == MAIN and vars(sys.modules[MAIN]).get(value.__name__) is value


def forget() -> None:
    """Remove from `__main__` what was entered, as the process ends."""
    global _entered
    entered, _entered = _entered or {}, None
    names = vars(sys.modules[MAIN])
    for name, value in entered.items():
        if names.get(name) is value:
            del names[name]
