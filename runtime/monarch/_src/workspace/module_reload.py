"""Reloads edited modules in a running process, and patches references to the old code.

Runs in: the kernel and procs; imported there, so it imports nothing of Jupyter. Any thread, one at
a time; other threads may run the code meanwhile, and get the new code with the next call.

This patches the same objects as IPython's autoreload. A function that is referenced anywhere, in a
closure or a list, runs the new code; a class that is referenced anywhere has the new attributes,
and its instances are of the new class. Beyond that: names of other modules that were bound to the
old function or class (`from steps import step`) are bound to the new one, because pickle asks for
the object that the module has; and functions inside decorators are patched too. A function or class
that is no longer in the file is removed; other names that the file no longer assigns stay.

Owns: the loaded version of each file of this process.
Invariants: each version of a file is loaded once, whether that works or not; a module that fails to
load keeps its previous contents.
"""

from __future__ import annotations

import gc
import importlib.util
import linecache
import os
import site
import sys
import sysconfig
import time
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

Stamp = tuple[int, int]
"""The version of a file: time of its last change in ns, and its size."""

_OWN_PACKAGES = ("monarch", "monarch_jupyter")
_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__", "__doc__", "__annotations__")
_OWN_TO_A_CLASS = frozenset({"__dict__", "__weakref__", "__slots__", "__subclasshook__"})


@dataclass(frozen=True)
class Reload:
    """One module that was edited. `error`: why it could not be reloaded, in one line."""

    module: str
    file: str
    error: str | None = None


class ModuleReloader:
    """Finds files that have changed since they were loaded, and reloads them."""

    def __init__(
        self, known: Mapping[str, Stamp] | None = None, since: float = float("inf")
    ) -> None:
        """`known`: versions of files that are loaded here.

        A check that first sees a file takes its version as loaded, unless the file is newer than
        the previous check, or than `since` (seconds since 1970) at the first check: then the file
        may have been edited after it was loaded, and it is loaded again.
        """
        self._stamps: dict[str, Stamp] = dict(known or {})
        self._since = since
        self._files: dict[str, tuple[object, str | None]] = {}

    @property
    def since(self) -> float:
        """The time of the last check, in seconds since 1970."""
        return self._since

    @property
    def stamps(self) -> dict[str, Stamp]:
        """The versions that are loaded, by file."""
        return dict(self._stamps)

    def mark_loaded(self) -> None:
        """Take all current versions as loaded, since another reloader works in this process."""
        for name, module in list(sys.modules.items()):
            file = self._file(name, module)
            if file is not None:
                self._is_edited(file)
        self._since = time.time()

    def reload_edited(self, names: Iterable[dict[str, Any]] = ()) -> list[Reload]:
        """Reload and return changed modules. `names`: further namespaces to rebind names in."""
        found: list[Reload] = []
        replaced: Replaced = {}
        began = time.time()
        users: list[types.ModuleType] = []
        for name, module in list(sys.modules.items()):
            file = self._file(name, module)
            if file is None:
                continue
            users.append(module)
            if self._is_edited(file):
                error = None
                try:
                    reload_module(module, replaced)
                except Exception as failed:
                    error = _one_line(failed)
                found.append(Reload(name, file, error))
        if replaced:
            _rebind(replaced, [*(vars(module) for module in users), *names])
            _reclass_instances(replaced)
        self._since = began
        return found

    def _file(self, name: str, module: Any) -> str | None:
        known = self._files.get(name)
        if known is None or known[0] is not module:
            file = None if name == "__main__" else source_file(module)
            known = self._files[name] = (module, file)
        return known[1]

    def _is_edited(self, file: str) -> bool:
        try:
            status = os.stat(file)
        except OSError:
            return False  # being written, or gone: keep the loaded code
        now = (status.st_mtime_ns, status.st_size)
        before = self._stamps.get(file)
        self._stamps[file] = now
        if before is None:
            return status.st_mtime > self._since
        return before != now


def source_file(module: Any) -> str | None:
    """The file of a module of the user's own; None for Python's, installed ones and our own."""
    if not isinstance(module, types.ModuleType):
        return None
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    file = os.path.abspath(file)
    return None if file.startswith(_not_the_users()) else file


def _not_the_users() -> tuple[str, ...]:
    global _installed
    if _installed is None:
        paths = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib")}
        paths |= {*site.getsitepackages(), site.getusersitepackages()}
        own = (getattr(sys.modules.get(name), "__file__", None) for name in _OWN_PACKAGES)
        paths |= {os.path.dirname(file) for file in own if file}
        _installed = tuple(os.path.abspath(path) + os.sep for path in paths)
    return _installed


_installed: tuple[str, ...] | None = None


Replaced = dict[int, tuple[Any, Any]]
"""Functions and classes that were replaced, with the new ones, by id of the old."""


def reload_module(module: types.ModuleType, replaced: Replaced) -> None:
    """Load a module again, patch its old functions and classes, and record them in `replaced`.

    Raises:
        Exception: any error of the module, which then keeps its previous contents.
    """
    namespace = vars(module)
    before = dict(namespace)
    try:
        exec(_code_of(module), namespace)
    except BaseException:
        namespace.update(before)  # no name is missing in between, for threads that run the module
        for name in namespace.keys() - before.keys():
            del namespace[name]
        raise
    for name, old in before.items():
        new = namespace.get(name)
        if getattr(old, "__module__", None) != module.__name__:
            continue
        if new is not old:
            _patch(old, new, replaced)
        elif isinstance(old, types.FunctionType | type):
            del namespace[name]  # no longer in the file, or it would be another object


def _code_of(module: types.ModuleType) -> types.CodeType:
    """The module's file, compiled.

    This bypasses cached bytecode, which distinguishes versions by whole seconds only.
    """
    file = str(module.__file__)
    linecache.checkcache(file)
    text = Path(file).read_bytes()
    try:
        os.unlink(importlib.util.cache_from_source(file))
    except OSError:
        pass  # there is none, or none may be written
    return compile(text, file, "exec", dont_inherit=True)


def _patch(old: Any, new: Any, replaced: Replaced) -> None:
    """Give `old` the code of `new`, if they are of one kind."""
    if type(old) is not type(new):
        return
    if isinstance(old, types.FunctionType):
        replaced[id(old)] = (old, new)
        _patch_function(old, new, replaced)
    elif isinstance(old, type):
        replaced[id(old)] = (old, new)
        _patch_class(old, new, replaced)
    elif isinstance(old, staticmethod | classmethod):
        _patch(_function_of(old), _function_of(new), replaced)
    elif isinstance(old, property):
        for part in ("fget", "fset", "fdel"):
            _patch(getattr(old, part), getattr(new, part), replaced)
    elif "__wrapped__" in getattr(old, "__dict__", {}):
        # The object of a decorator, such as an endpoint: references to it get the new method.
        _patch(old.__wrapped__, getattr(new, "__wrapped__", None), replaced)
        old.__dict__.update(new.__dict__)


def _function_of(method: Any) -> Any:
    return method.__func__


def _patch_function(old: types.FunctionType, new: types.FunctionType, replaced: Replaced) -> None:
    mine, theirs = old.__closure__ or (), new.__closure__ or ()
    if len(mine) != len(theirs):
        return  # code with another number of closure variables does not fit
    for cell, other in zip(mine, theirs, strict=True):
        if cell is not other:
            _patch_cell(cell, other, replaced)
    for attribute in _FUNCTION:
        setattr(old, attribute, getattr(new, attribute))
    old.__dict__.update(new.__dict__)


def _patch_cell(cell: types.CellType, other: types.CellType, replaced: Replaced) -> None:
    try:
        inside, now = cell.cell_contents, other.cell_contents
    except ValueError:
        return  # empty: a name that is not bound yet
    if isinstance(inside, types.FunctionType):
        _patch(inside, now, replaced)
    # A cell also holds the class that super() uses; instances are of the new class.
    cell.cell_contents = now


def _patch_class(old: type, new: type, replaced: Replaced) -> None:
    mine, theirs = dict(vars(old)), vars(new)
    for name in mine:
        if name not in _OWN_TO_A_CLASS and name not in theirs:
            _try_change(delattr, old, name)
    for name, value in theirs.items():
        own = name in _OWN_TO_A_CLASS or isinstance(value, types.MemberDescriptorType)
        if not own and mine.get(name) is not value:
            if name in mine:
                _patch(mine[name], value, replaced)
            _try_change(setattr, old, name, _bound_to(old, value))


def _bound_to(cls: type, method: Any) -> Any:
    """A copy of a method whose super() refers to `cls`, since references to `cls` remain."""
    if isinstance(method, classmethod):
        return classmethod(_bound_to(cls, _function_of(method)))
    if not isinstance(method, types.FunctionType) or "__class__" not in method.__code__.co_freevars:
        return method
    cells = tuple(
        types.CellType(cls) if name == "__class__" else cell
        for name, cell in zip(method.__code__.co_freevars, method.__closure__ or (), strict=True)
    )
    copy = types.FunctionType(
        method.__code__, method.__globals__, method.__name__, method.__defaults__, cells
    )
    for attribute in _FUNCTION[2:]:
        setattr(copy, attribute, getattr(method, attribute))
    copy.__dict__.update(method.__dict__)
    copy.__qualname__ = method.__qualname__
    return copy


def _try_change(change: Any, *arguments: Any) -> None:
    try:
        change(*arguments)
    except (AttributeError, TypeError):
        pass  # an enum or a slot cannot be changed in place, and the new class has it


def _rebind(replaced: Replaced, namespaces: Iterable[dict[str, Any]]) -> None:
    for namespace in namespaces:
        for name, value in list(namespace.items()):
            found = replaced.get(id(value))
            if found is not None:
                namespace[name] = found[1]


def _reclass_instances(replaced: Replaced) -> None:
    """Make instances of old classes, and classes derived from them, those of the new ones."""
    classes = {old: new for old, new in replaced.values() if isinstance(old, type)}
    for old, new in classes.items():
        for derived in old.__subclasses__():
            if derived not in classes:
                bases = tuple(new if base is old else base for base in derived.__bases__)
                _try_change(setattr, derived, "__bases__", bases)
    if not classes:
        return
    for holder in gc.get_referrers(*classes):
        new = classes.get(cast("Any", type(holder)))
        if new is not None:
            _try_change(object.__setattr__, holder, "__class__", new)


def _one_line(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}, line {error.lineno}"
    where = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_next is None:
            code = trace.tb_frame.f_code
            where = f" ({os.path.basename(code.co_filename)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return " ".join(f"{type(error).__name__}: {error}".split()) + where
