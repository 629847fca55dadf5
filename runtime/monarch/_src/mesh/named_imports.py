"""The large libraries that code for ranks imports as it runs, though the client has not.

A class may import torch in its methods, and a cell for ranks at its top. The first mesh imports for
itself; later ones are forked with what was noted here (`mesh.client_imports`).

Runs in: the client and procs that spawn meshes. No code is run to find its imports.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from types import CodeType, FunctionType
from typing import Any, cast
from weakref import WeakSet

from monarch._src.actor.method_declaration import MethodDeclaration
from monarch._src.mesh import client_imports
from monarch._src.mesh.client_imports import OWN, note

_seen: WeakSet[Any] = WeakSet()
"""The classes and functions whose code was looked at."""


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
    if not any(library in source for library in client_imports.LIBRARIES):
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
    if any(_library(name) in client_imports.LIBRARIES for name in code.co_names):
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
        if (
            library in client_imports.LIBRARIES
            and library not in sys.modules
            and find_spec(library) is not None
        ):
            note(library)


def _library(module: str) -> str:
    return module.partition(".")[0]
