"""What a proc that ends in order still runs of its program, as an interpreter that ends does.

Runs in: a proc, at its very end, on its main thread. The process then ends by `os._exit`: a fork
must not run its parent's end. The host agent bounds the time that all this takes.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import sysconfig
import threading
from types import BuiltinFunctionType, FunctionType, ModuleType

import monarch
from monarch._src.actor.endpoint import forget_classes

_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")


def run_exit_functions() -> None:
    """Run what the program has registered with `atexit`."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]


def run_destructors() -> None:
    """Destroy what the modules of the program hold, and all that nothing refers to any more.

    Names that begin with an underscore go first, as in an interpreter that ends. Modules, classes
    and functions stay, so that destructors find them; so do modules of libraries, whose threads may
    still run.
    """
    # A daemon thread of the program that finds its globals gone ends without a word.
    threading.excepthook = lambda _: None
    for module in _modules_of_the_program():
        names = vars(module)
        for private in (True, False):
            for name in list(names):
                if name.startswith("_") is not private or _is_dunder(name):
                    continue
                if not isinstance(names[name], _CODE):
                    names[name] = None
    forget_classes()
    gc.collect()


def _modules_of_the_program() -> list[ModuleType]:
    """The last imported first, `__main__` before all."""
    modules = list(sys.modules.items())
    found = [module for name, module in reversed(modules) if _is_of_the_program(name, module)]
    main = sys.modules.get("__main__")
    return found if main is None else [main, *found]


def _is_of_the_program(name: str, module: ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or name == "__main__":
        return False
    return not os.path.realpath(path).startswith(_libraries())


def _libraries() -> tuple[str, ...]:
    own = os.path.dirname(monarch.__file__)
    paths = [sysconfig.get_path(name) for name in _LIBRARIES]
    return tuple(os.path.join(os.path.realpath(path), "") for path in (own, *paths) if path)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
