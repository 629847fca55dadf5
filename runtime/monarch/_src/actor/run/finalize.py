"""The exit functions and destructors that a proc runs at an orderly end.

Runs in: a proc, at its end, on its main thread, as an interpreter does at exit. The process then
ends by `os._exit`, since a fork must not finalize its parent. The host agent limits the time.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
import threading
from types import BuiltinFunctionType, FunctionType, ModuleType

from monarch._src.actor.endpoint import forget_classes
from monarch._src.wire.pickling import main_names

_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)
# A proc looks at some hundred modules at its end. So no path is resolved, and `sysconfig`, which
# takes milliseconds, is not asked: the standard library and this package are known by their place,
# installed packages by the name of their folder.
_LIBRARIES = (
    os.path.join(os.path.dirname(os.__file__), ""),
    os.path.abspath(f"{os.path.dirname(__file__)}/../../..") + os.sep,  # runtime/monarch
)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


def run_exit_functions() -> None:
    """Run the functions that the program has registered with `atexit`."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]


def run_destructors() -> None:
    """Destroy the objects that the program's modules hold, and all unreachable objects.

    Names that begin with an underscore go first, as at the exit of an interpreter. Modules, classes
    and functions stay, since destructors may use them. The modules of libraries stay too, since
    their threads may still run.
    """
    # A daemon thread of the program that misses its globals ends silently.
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
    main_names.forget()  # a class that came by value goes with its globals
    gc.collect()


def _modules_of_the_program() -> list[ModuleType]:
    """The program's modules: `__main__`, then the others, last imported first."""
    modules = list(sys.modules.items())
    found = [module for name, module in reversed(modules) if _is_of_the_program(name, module)]
    main = sys.modules.get("__main__")
    return found if main is None else [main, *found]


def _is_of_the_program(name: str, module: ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or name == "__main__":
        return False
    return not path.startswith(_LIBRARIES) and not _INSTALLED.search(path)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
