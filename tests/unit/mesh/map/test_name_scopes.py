"""Names of `__main__` reach the user's code behind any wrapper, and change no other module.

Of a name with two values, one counts, and a line says so.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from monarch._src.mesh.map.name_scopes import Conflicts, are_same, bind, scopes_of
from monarch._src.pickling import main_names

# As on a rank, where code by value has globals of its own.
MAIN = {"__name__": "__main__"}
WRAPPERS = """
import contextlib, functools, operator

def plain(x): return x * factor

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
under_a_decorator = decorated(plain)

def without_wraps(function): return lambda x: function(x)
under_two = without_wraps(decorated(plain))

def by_default(x, function=plain): return function(x)
def by_keyword(x, *, function=plain): return function(x)

def in_a_list(functions):
    def chain(x): return functions[0](x)
    return chain
in_a_container = in_a_list([plain])

class Slotted:
    __slots__ = ("function",)
    def __init__(self, function): self.function = function
    def __call__(self, x): return self.function(x)
in_a_slot = Slotted(decorated(plain))

class Members:
    @staticmethod
    def static(x): return x * factor
    @classmethod
    def of_class(cls, x): return x * factor
    @property
    def value(self): return 3 * factor
    @functools.cached_property
    def cached(self): return 3 * factor
    def times(self, x, y): return x * y * factor
    partial = functools.partialmethod(times, 1)
    @functools.singledispatchmethod
    def by_type(self, x): return x * factor
static_method = Members.static
class_method = Members.of_class
def a_property(x): return Members().value
def a_cached_property(x): return Members().cached
partial_method = Members().partial
dispatched_method = Members().by_type

class Derived(dict):
    def __getitem__(self, x): return x * factor
method_in_c = functools.partial(map, plain)
of_a_mapping = Derived().__getitem__

@contextlib.contextmanager
def managed(x): yield x * factor
def a_context_manager(x):
    with managed(x) as found: return found

class Meta(type):
    def __call__(cls, x): return x * factor
class Made(metaclass=Meta): pass

class Claims:
    "A proxy that claims the class of its target."
    def __init__(self, target): object.__setattr__(self, "target", target)
    __class__ = property(lambda self: type(self.target))
    def __getattr__(self, name): raise AssertionError("code of the user has run")
    def __call__(self, x): return object.__getattribute__(self, "target")(x)
"""
NAMES = [
    "under_a_decorator", "under_two", "by_default", "by_keyword", "in_a_container", "in_a_slot",
    "static_method", "class_method", "a_property", "a_cached_property", "partial_method",
    "dispatched_method", "of_a_mapping", "a_context_manager", "Made",
]  # fmt: skip


def defined(source: str, **names: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {**MAIN, **names}
    exec(source, scope)
    return scope


@pytest.mark.parametrize("name", NAMES)
def test_code_behind_a_wrapper_gets_the_names(name: str) -> None:
    function: Callable[[int], int] = defined(WRAPPERS)[name]
    with pytest.raises(NameError, match="factor"):
        function(3)
    bind(function, {"factor": 10})
    assert function(3) == 30


def test_a_function_that_a_builtin_or_a_partial_calls_gets_the_names() -> None:
    scope = defined(WRAPPERS)
    bind(scope["method_in_c"], {"factor": 10})
    assert list(scope["method_in_c"]([1, 2])) == [10, 20]


def test_an_object_that_claims_another_class_is_searched_without_its_code() -> None:
    scope = defined(WRAPPERS)
    claims = scope["Claims"](scope["plain"])
    bind(claims, {"factor": 10})
    assert claims(3) == 30


def test_each_part_is_searched_with_its_own_globals() -> None:
    inner = defined("def inner(x): return x * factor")
    outer = defined(
        "def outer(x): return inner(x) + offset", inner=functools.lru_cache(inner["inner"])
    )
    bind(outer["outer"], {"factor": 10, "offset": 1})
    assert outer["outer"](3) == 31
    assert len(scopes_of(outer["outer"])) == 2


def test_data_of_the_rank_counts_and_code_that_came_along_does() -> None:
    scope = defined(
        "import functools\n"
        "def helper(x): return x * factor\n"
        "@functools.cache\n"
        "def cached(x): return x * factor\n"
        "class Made: pass\n"
        "def plain(x): return helper(x), cached(x), Made, functools, factor, same, _\n",
        factor=2, same=[1, "a"], _=4,
    )  # fmt: skip
    made = scope["Made"]
    of_rank = defined(
        "def helper(x): return -x\ndef cached(x): return -x\nclass Made: pass\n"
        "import json as functools"
    )
    conflicts = bind(scope["plain"], {**of_rank, "factor": 10, "same": [1, "a"], "_": 5})
    assert scope["plain"](3) == (30, 30, made, functools, 10, [1, "a"], 4)
    assert conflicts.of_rank == ["factor"]
    assert sorted(conflicts.of_sender) == ["Made", "cached", "functools", "helper"]


def test_what_an_earlier_message_has_left_in_main_is_no_name_of_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(main_names, "_entered", {})
    earlier = defined("def helper(x): return -x")["helper"]
    main_names.enter("helper", earlier)
    scope = defined("def helper(x): return x\ndef plain(x): return helper(x)")
    conflicts = bind(scope["plain"], vars(main))
    assert scope["plain"](3) == 3
    assert conflicts == Conflicts()
    lacking = defined("def plain(x): return helper(x)")
    bind(lacking["plain"], vars(main))
    assert lacking["plain"](3) == -3


def test_a_later_value_counts_unless_the_code_has_bound_the_name_itself() -> None:
    scope = defined("def plain(x): return x * factor")
    bind(scope["plain"], {"factor": 10})
    bind(scope["plain"], {"factor": 100})
    assert scope["plain"](3) == 300
    scope["factor"] = 1
    bind(scope["plain"], {"factor": 10})
    assert scope["plain"](3) == 3


def test_the_modules_of_wrappers_are_left_alone() -> None:
    scope = defined(WRAPPERS)
    dispatched = functools.singledispatch(scope["plain"])
    before = {
        name: dict(vars(sys.modules[name])) for name in ("functools", "contextlib", "builtins")
    }
    for one in (dispatched, functools.cache(scope["plain"]), scope["a_context_manager"]):
        bind(one, {"factor": 10, "type": "resnet", "wraps": 3, "new_name": 4})
    assert {name: dict(vars(sys.modules[name])) for name in before} == before
    assert dispatched(3) == 30


def test_a_copy_of_library_code_that_came_by_value_is_left_alone() -> None:
    library = defined(
        "def wrap(function):\n"
        "    def wrapper(x): return function(x) if type(x) is int else None\n"
        "    return wrapper",
        __name__="functools", __file__=functools.__file__,
    )  # fmt: skip
    scope = defined("def plain(x): return x * factor")
    wrapped = library["wrap"](scope["plain"])
    wrapped.__module__ = "__main__"  # as `wraps` sets it
    bind(wrapped, {"factor": 10, "type": "resnet"})
    assert wrapped(3) == 30
    assert "type" not in library


def test_a_module_of_the_program_gets_only_names_that_its_code_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("helpers")
    module.__file__ = str(tmp_path / "helpers.py")
    monkeypatch.setitem(sys.modules, "helpers", module)
    exec("own = 1\ndef helper(x): return type(x)(x * factor + own)", vars(module))
    scope = defined("def calls(x): return helper(x)", helper=vars(module)["helper"])
    bind(scope["calls"], {"factor": 10, "type": "resnet", "own": 5, "unused": 6})
    assert scope["calls"](3) == 31
    assert "type" not in vars(module)
    assert "unused" not in vars(module)
    bind(scope["calls"], {"factor": 100})
    assert scope["calls"](3) == 301


def test_code_that_refers_to_itself_and_empty_variables_are_searched_once() -> None:
    scope = defined(
        "def make():\n"
        "    def again(x): return x * factor if x < 9 else again(never)\n"
        "    if False: never = 1\n"
        "    return again\n"
        "again = make()"
    )
    bind(scope["again"], {"factor": 10})
    assert scope["again"](3) == 30
    bind(len, {"factor": 10})
    bind("abc".__contains__, {"factor": 10})


def function(source: str, name: str = "f") -> Any:
    scope: dict[str, Any] = {"functools": functools}
    exec(source, scope)
    return scope[name]


PLAIN = "def f(x, y=1): return [x + y + 2, lambda: 'inner']"
CLOSURE = "def make(value):\n    def f(): return value\n    return f\nf = make({})"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, {"a": "b"}], [1, {"a": "b"}]),
        (np.arange(3_000_000), np.arange(3_000_000)),
        (float("nan"), float("nan")),
        (function(PLAIN), function("\n\n" + PLAIN)),
        (function(CLOSURE.format([1])), function(CLOSURE.format([1]))),
        (functools.partial(function(PLAIN), y=[1]), functools.partial(function(PLAIN), y=[1])),
        (functools.cache(function(PLAIN)), functools.cache(function(PLAIN))),
    ],
)
def test_these_values_of_a_name_are_the_same(one: object, other: object) -> None:
    assert are_same(one, other)


def changed(array: Any) -> Any:
    array[-1] += 1
    return array


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ([1, 2], [2, 1]),
        (np.arange(8), np.arange(4)),
        (np.arange(3_000_000), changed(np.arange(3_000_000))),
        (function(PLAIN), function(PLAIN.replace("2", "3"))),
        (function(PLAIN), function(PLAIN.replace("y=1", "y=2"))),
        (function(PLAIN), function(PLAIN.replace("inner", "other"))),
        (function(CLOSURE.format([1])), function(CLOSURE.format([2]))),
        (functools.partial(function(PLAIN), y=[1]), functools.partial(function(PLAIN), y=[2])),
        (functools.cache(function(PLAIN)), functools.cache(function(CLOSURE.format(1)))),
        (np, functools),
        (function("class f: pass"), function("class f: pass")),
        ((one for one in "ab"), (one for one in "ab")),  # cannot be pickled
    ],
)
def test_these_values_of_a_name_are_not(one: object, other: object) -> None:
    assert not are_same(one, other)


def test_a_line_names_the_variables_the_value_that_counts_and_the_remedy_for_the_other() -> None:
    assert Conflicts().texts("sweep", "workers") == []
    of_rank, of_sender = Conflicts(["X"], ["helper", "Model"]).texts("sweep", "workers")
    assert of_rank == (
        "sweep uses X of the ranks of workers, which differs from that of this program; to use "
        "this program's, call workers.push(X=X) or rename it here"
    )
    assert of_sender == (
        "sweep uses helper and Model of this program, which differ from those of the ranks of "
        "workers; to use the ranks' own, rename them there"
    )
