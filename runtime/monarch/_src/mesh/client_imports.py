"""The large libraries of this process and of its code for ranks, for procs forked with them.

Runs in: the client and procs that spawn meshes. The client may have its host import them ahead.

A rank that imports torch takes two seconds of a processor and 140 MB of its own. Forked from a
process that has imported torch, it has it at once and shares the memory. The agent imports what is
listed here in such a process (`host.state.zygotes`).

A class may import torch in its methods, and a cell for ranks at its top, though the client has not.
The first mesh imports for itself; later ones are forked with what was noted here. No code is run to
find its imports.
"""

from __future__ import annotations

import ast
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, cast
from weakref import WeakSet

from monarch._src.actor.method_declaration import MethodDeclaration
from monarch._src.config import AUTO, settings
from monarch._src.mesh.client import ClientSession, current_session, session
from monarch._src.mesh.spawn_options import clients_path
from monarch._src.wire.messages import ImportAhead, Imports

# Libraries that are slow to import and that ranks compute with. Libraries that draw (matplotlib)
# are left out, and those whose threads do not survive a fork although they start late (jax, polars,
# tensorflow).
LIBRARIES = frozenset(
    (
        "accelerate", "datasets", "diffusers", "lightning", "numpy", "pandas", "peft", "pyarrow",
        "pytorch_lightning", "safetensors", "scipy", "sklearn", "tokenizers", "torch", "torchaudio",
        "torchvision", "transformers", "xgboost",
    )
)  # fmt: skip
OWN = frozenset(("monarch", "monarch_jupyter"))
_noted: dict[str, None] = {}
_told: tuple[ClientSession | None, frozenset[str]] = (None, frozenset())
"""The session that was last told, and the libraries that were imported or noted then."""
_seen: WeakSet[Any] = WeakSet()
"""The classes and functions whose code was looked at."""


def client_imports(path: Sequence[str], env: Mapping[str, str | None]) -> Imports | None:
    """The modules of LIBRARIES that this process has imported or noted; None if there are none.

    Args:
        path: the import path of new procs.
        env: the changes of this process to the agent's environment.
    """
    noted = noted_libraries()
    if not noted and sys.modules.keys().isdisjoint(LIBRARIES):
        return None  # of a client without them nothing is asked
    modules = _packages()
    if not modules and not noted:
        return None
    named = named_by_program()
    needed = [module for module in modules if module.partition(".")[0] in named]
    return Imports([*modules, *noted], [*needed, *noted], list(path), dict(env))


def note(library: str) -> None:
    """Count a library as one that the program names, though this process has not imported it."""
    _noted.setdefault(library)


def noted_libraries() -> list[str]:
    """The noted libraries that this process has not imported, in the order of their notes."""
    return [library for library in _noted.copy() if library not in sys.modules]


def _packages() -> list[str]:
    """The imported packages of LIBRARIES: library by library, in the order of their imports.

    Of a library that another thread is just importing nothing is listed.
    """
    found = [
        name
        for name, module in sys.modules.copy().items()
        if name.partition(".")[0] in LIBRARIES and "__path__" in _variables(module)
    ]
    busy = {top for top in libraries(found) if _is_being_imported(top)}
    # An import registers a package before its subpackages, but torch registers some by hand.
    return [
        name
        for top in libraries(found)
        if top not in busy
        for name in [top, *(one for one in found if one.startswith(f"{top}."))]
    ]


def _variables(module: object) -> Mapping[str, object]:
    if issubclass(type(module), ModuleType):
        return object.__getattribute__(module, "__dict__")
    return {}


def _is_being_imported(name: str) -> bool:
    spec = _variables(sys.modules.get(name)).get("__spec__")
    return spec is None or bool(getattr(spec, "_initializing", False))


def libraries(modules: Sequence[str]) -> tuple[str, ...]:
    """The libraries that these modules belong to, each once."""
    return tuple(dict.fromkeys(module.partition(".")[0] for module in modules))


def named_by_program() -> set[str]:
    """The libraries whose modules, classes, functions or objects the program's modules name.

    The program's modules are the script or the notebook, and modules that are neither in the
    standard library nor installed.
    """
    named: set[str] = set()
    for module in _program():
        for value in list(_variables(module).values()):
            named.add(_module_of(value).partition(".")[0])
    return named & LIBRARIES


def _module_of(value: object) -> str:
    """The module that a value is, or comes from. No code of the value runs."""
    kind = type(value)  # not `isinstance`, which asks the value for its class
    if issubclass(kind, ModuleType):
        name = _variables(value).get("__name__")
    elif kind in (FunctionType, BuiltinFunctionType):
        name = cast("FunctionType", value).__module__
    else:
        described = cast("type", value) if issubclass(kind, type) else kind
        name = type.__getattribute__(described, "__dict__").get("__module__")
    return name if isinstance(name, str) else ""


def _program() -> Iterator[ModuleType]:
    installed, apart = _installed(), LIBRARIES | OWN
    for name, module in sys.modules.copy().items():
        if name == "__main__":
            yield module
            continue
        file = _variables(module).get("__file__")
        if (
            isinstance(file, str)
            and not file.startswith(installed)
            and name.partition(".")[0] not in apart
        ):
            yield module


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    """The directories of the standard library and of installed packages."""
    paths = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages(), [site.getusersitepackages()])
    return tuple(f"{path}{os.sep}" for path in paths if path)


def import_ahead() -> None:
    """Have this host import what this program uses of large libraries, for ranks to come.

    The ranks of a mesh that is spawned later have torch, say, as they begin. The program uses what
    this process has imported, and what actors and functions import that it has sent to ranks. The
    call returns at once, and has no effect if there is nothing new since the last call. It starts
    the session of this process if there is none. The notebook calls it after each cell. Without a
    call, the imports begin as the first mesh is spawned. See the setting `preload`.

    Raises:
        OSError: there is no place for the session directory, or no process can be started.
        TypeError, ValueError: a setting in the environment is wrong.
    """
    global _told
    imported = frozenset(LIBRARIES & sys.modules.keys()) | frozenset(noted_libraries())
    current = current_session()
    if not imported or (imported == _told[1] and current in (None, _told[0])):
        return  # a session that was ended since is not started again for this
    if settings().preload != AUTO:
        return
    held = session()
    imports = client_imports(clients_path(True), held.changed_environment())
    if imports is not None:
        held.runtime.routes.tell_agent_at("", ImportAhead(imports))
        _told = (held, imported)


# --- libraries that code for ranks imports as it runs ---------------------------------------------


def note_imports_of(code: type | FunctionType) -> None:
    """Note the libraries that the methods of a class, or a function, import."""
    if code in _seen:
        return
    _seen.add(code)
    functions = _functions_of(code) if isinstance(code, type) else iter((code,))
    for function in functions:
        _note(_imports_in(function.__code__))


def note_imports_in(source: str) -> None:
    """Note the libraries that a program text imports. An error of syntax is left to its reader."""
    if not any(library in source for library in LIBRARIES):
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            _note(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            _note((node.module,))


def _functions_of(cls: type) -> Iterator[FunctionType]:
    """The functions of the program's classes that `cls` is made of, endpoints among them."""
    for base in cls.__mro__:
        if _library(base.__module__) in OWN:
            continue
        for value in vars(base).values():
            if isinstance(value, (staticmethod, classmethod)):
                value = cast("Any", value).__func__
            elif isinstance(value, property):
                value = value.fget
            elif isinstance(value, MethodDeclaration):
                value = value.function
            while isinstance(value, FunctionType):
                yield value
                value = value.__dict__.get("__wrapped__")  # behind a decorator


def _imports_in(code: CodeType) -> Iterator[str]:
    """The modules that a function imports, and functions that are defined in it."""
    if any(_library(name) in LIBRARIES for name in code.co_names):
        import dis  # few functions get here

        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports_in(constant)


def _note(modules: Iterable[str]) -> None:
    for module in modules:
        library = _library(module)
        if library in LIBRARIES and library not in sys.modules and find_spec(library) is not None:
            note(library)


def _library(module: str) -> str:
    return module.partition(".")[0]
