"""Edited modules: what holds their old code anywhere has the new one, and keeps its state."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.frontend import ModuleReloader, Reload, source_file

Write = Callable[[str], Any]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the module `edited`, and imports it the first time."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(text: str) -> Any:
        (tmp_path / "edited.py").write_text(text)
        importlib.invalidate_caches()
        return sys.modules.get("edited") or importlib.import_module("edited")

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def loaded() -> ModuleReloader:
    reloader = ModuleReloader()
    assert reloader.reload_edited() == []
    return reloader


def edited(found: list[Reload]) -> list[str]:
    assert [one.error for one in found] == [None] * len(found)
    return [one.module for one in found]


def test_what_has_not_changed_is_left_alone(write: Write) -> None:
    module = write("things = []")
    things, reloader = module.things, loaded()
    assert reloader.reload_edited() == []
    assert module.things is things


def test_a_function_that_is_held_runs_the_new_code_though_nothing_but_a_digit_has_changed(
    write: Write,
) -> None:
    held = [write("def f(x, by=1):\n    return x + by").f]
    reloader = loaded()
    write("def f(x, by=2):\n    return x + by")
    assert edited(reloader.reload_edited()) == ["edited"]
    assert held[0](1) == 3
    assert reloader.reload_edited() == []


BASE = """
class Base:
    def area(self):
        return 1

class Shape(Base):
    sides = 3
    def __init__(self):
        self.state = "kept"
    def area(self):
        return super().area() * {factor}
    @property
    def name(self):
        return "{name}"
    @staticmethod
    def plain():
        return {factor}
    @classmethod
    def made(cls):
        return cls.__name__, {factor}
    class Inner:
        value = {factor}
"""


def test_instances_of_a_class_keep_their_state_and_have_its_new_methods(write: Write) -> None:
    module = write(BASE.format(factor=10, name="old"))
    old, shape, inner = module.Shape, module.Shape(), module.Shape.Inner()
    reloader = loaded()
    write(BASE.format(factor=20, name="new") + "    def added(self):\n        return 'added'\n")
    reloader.reload_edited()
    for one in (shape, old()):
        assert (one.state, one.area(), one.name, one.plain(), one.made(), one.added()) == (
            "kept", 20, "new", 20, ("Shape", 20), "added",
        )  # fmt: skip
    assert type(shape) is module.Shape
    assert type(inner) is module.Shape.Inner
    assert inner.value == 20
    assert pickle.loads(pickle.dumps(shape)).state == "kept"


def test_what_is_no_longer_in_the_file_is_gone_and_what_it_did_not_assign_stays(
    write: Write,
) -> None:
    module = write("def gone(): pass\nclass A:\n    old = 1\n    def f(self): return 1")
    module.cache = {"kept": 1}
    held, reloader = module.A, loaded()
    write("class A:\n    def f(self): return 2")
    reloader.reload_edited()
    assert not hasattr(module, "gone")
    assert module.cache == {"kept": 1}
    assert (hasattr(held, "old"), held().f()) == (False, 2)


def test_names_of_other_modules_and_of_the_notebook_mean_the_new_objects(
    write: Write, tmp_path: Path
) -> None:
    module = write("class A:\n    pass\ndef f():\n    return 1")
    (tmp_path / "other.py").write_text("from edited import A, f\nclass B(A):\n    pass\nb = B()")
    importlib.invalidate_caches()
    other: Any = importlib.import_module("other")
    names = {"A": module.A, "f": module.f, "x": 1}
    reloader = loaded()
    write("class A:\n    def g(self):\n        return 2\ndef f():\n    return 2")
    reloader.reload_edited([names])
    assert other.A is module.A is names["A"]
    assert other.f is module.f is names["f"]
    assert isinstance(other.b, module.A)
    assert other.b.g() == 2


DECORATED = """
import functools
def twice(function):
    @functools.wraps(function)
    def call(*args):
        return 2 * function(*args)
    return call
@twice
def f():
    return {value}
@functools.lru_cache
def cached():
    return {value}
"""


def test_decorated_functions_are_patched_inside(write: Write) -> None:
    module = write(DECORATED.format(value=1))
    held, reloader = module.f, loaded()
    write(DECORATED.format(value=5))
    reloader.reload_edited()
    assert (held(), module.f(), module.cached()) == (10, 10, 5)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax, line 1"),
        ("x = 3\ndef f(): ...\nraise OSError('no\\nway')", "OSError: no way (edited.py, line 3)"),
    ],
)  # fmt: skip
def test_a_version_that_does_not_load_is_told_once_and_the_old_code_runs_on(
    write: Write, text: str, error: str
) -> None:
    module = write("x = 1\ndef f():\n    return 1")
    reloader = loaded()
    write(text)
    (found,) = reloader.reload_edited()
    assert (found.module, found.error) == ("edited", error)
    assert reloader.reload_edited() == []
    assert (module.x, module.f()) == (1, 1)
    write("def f():\n    return 3")
    assert edited(reloader.reload_edited()) == ["edited"]
    assert module.f() == 3


def test_a_file_that_is_gone_leaves_its_module_as_it_is(write: Write, tmp_path: Path) -> None:
    module = write("def f():\n    return 1")
    reloader = loaded()
    (tmp_path / "edited.py").unlink()
    assert reloader.reload_edited() == []
    assert module.f() == 1


def test_an_edit_between_loading_and_the_first_look_is_not_missed(write: Write) -> None:
    module = write("def f():\n    return 1")
    stamps = loaded().stamps
    write("def f():\n    return 22")
    assert edited(ModuleReloader(stamps).reload_edited()) == ["edited"]
    assert module.f() == 22
    # Where nobody knows which version was loaded, a file that is newer than that is loaded again.
    before, after = (os.stat(module.__file__).st_mtime + by for by in (-1, 1))
    assert edited(ModuleReloader(since=before).reload_edited()) == ["edited"]
    assert ModuleReloader(since=after).reload_edited() == []


def test_only_files_of_the_users_own_are_looked_at(write: Write) -> None:
    import json

    import monarch_jupyter

    module = write("")
    assert source_file(module) == module.__file__
    assert [source_file(one) for one in (json, pytest, monarch_jupyter, sys, None)] == [None] * 5
