"""The destructors that a proc runs at an orderly end, after its exit functions.

Runs in: a proc, at its end, on its main thread, as an interpreter does at exit. The process then
ends by `os._exit`, since a fork must not finalize its parent. The host agent limits the time.
"""

from __future__ import annotations

import gc
import sys
import threading
from types import BuiltinFunctionType, FunctionType, ModuleType

from monarch._src.actor.endpoint import forget_classes
from monarch._src.pickling import main_names
from monarch._src.system.imports import is_of_the_program

# Objects that keep their names until the end: destructors of other objects may use them.
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)


def run_destructors() -> None:
    """Destroy the objects that the program's modules hold, and all unreachable objects."""
    # A daemon thread of the program that misses its globals ends silently.
    threading.excepthook = lambda _: None
    clear_program()
    forget_classes()
    main_names.forget()  # a class that came by value goes with its globals
    gc.collect()


def clear_program() -> None:
    """Clear the names in the program's modules, `__main__` first, and destroy unreachable objects.

    The modules of libraries stay as they are, since their threads may still run.
    """
    for module in _modules_of_the_program():
        clear_names(module)
    gc.collect()


def clear_names(module: ModuleType) -> None:
    """Set the names of a module to None, one by one, as an interpreter does at exit.

    An object without references is destroyed before the objects that it refers to, so that a file
    is written before it is closed; garbage collection guarantees no order. Names that begin with an
    underscore go first. Modules, classes and functions stay, since destructors may use them.
    """
    names = vars(module)
    for private in (True, False):
        for name in list(names):
            if name.startswith("_") is not private or _is_dunder(name):
                continue
            if not isinstance(names[name], _CODE):
                names[name] = None


def _modules_of_the_program() -> list[ModuleType]:
    """The program's modules: `__main__`, then the others, last imported first."""
    modules = list(sys.modules.items())
    found = [
        module
        for name, module in reversed(modules)
        if name != "__main__" and is_of_the_program(getattr(module, "__file__", None))
    ]
    main = sys.modules.get("__main__")
    return found if main is None else [main, *found]


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
