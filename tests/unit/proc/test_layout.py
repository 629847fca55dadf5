"""What forks of the zygote will write to is laid together, and does what it did."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from monarch._src.proc import layout
from monarch._src.proc.order import FUNCTIONS, NAMES

SOURCE = """
from contextlib import contextmanager

def plain(a, b=2, *, c=3):
    return a, b, c

def closing(n):
    def inner():
        return n
    return inner

def raising():
    what = "here"
    raise ValueError(what)

@contextmanager
def guarded(n):
    yield n + 1

class Thing:
    def __init__(self):
        self.n = 1

    def method(self):
        return super().__repr__() and self.n

    @property
    def size(self):
        return self.n + 1

    @staticmethod
    def static(n):
        return -n

    @classmethod
    def named(cls):
        return cls.__name__
"""
ALL = "plain closing raising guarded Thing.method Thing.size Thing.static Thing.named"


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "laid_out_things.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("laid_out_things")
    del sys.modules["laid_out_things"]


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    before = len(layout._kept)
    yield
    del layout._kept[before:]


def codes(module: ModuleType) -> list[CodeType]:
    found = [layout.function_in(vars(module), name) for name in ALL.split()]
    assert None not in found
    return [function.__code__ for function in found if function is not None]


def test_code_that_was_laid_out_does_what_it_did(things: ModuleType) -> None:
    before = codes(things)
    layout.settle(f"{things.__name__} {ALL}")
    after = codes(things)
    assert after == before
    assert not set(map(id, after)) & set(map(id, before))
    assert things.plain(1) == (1, 2, 3)
    assert things.plain(1, 5, c=6) == (1, 5, 6)
    assert things.closing(4)() == 4
    with things.guarded(1) as n:
        assert n == 2
    thing = things.Thing()
    assert (thing.method(), thing.size, thing.static(3), thing.named()) == (1, 2, -3, "Thing")


def test_a_traceback_through_it_tells_the_same_line(things: ModuleType) -> None:
    layout.settle(f"{things.__name__} raising")
    with pytest.raises(ValueError, match="here") as raised:
        things.raising()
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.line) == (things.__file__, "raise ValueError(what)")


def test_what_is_not_there_is_passed_over(things: ModuleType) -> None:
    before = codes(things)
    layout.settle(
        f"no_such_module f\n{things.__name__} no_such Thing.none plain.none Thing\nos O_RDWR"
    )
    assert list(map(id, codes(things))) == list(map(id, before))


# Python's own allocator, which a debug build or an environment may replace.
pools = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED") or "PYTHONMALLOC" in os.environ),
    reason="objects are not allocated from pools of Python's own here",
)


# In processes of their own: that of the tests has more gaps by now than are worth filling.
NEEDS_A_FEW = """
import sys, types
from monarch._src.proc import layout

names = [f"f{n}" for n in range(1000)]
many = sys.modules["many"] = types.ModuleType("many")
exec("".join(f"def {name}(a):\\n    return a + {n}\\n" for n, name in enumerate(names)), vars(many))
needed = names[::11]  # ten that nobody needs between two that are

def pages():
    return len({id(getattr(many, name).__code__) // 4096 for name in needed})

before = pages()
layout.settle(f"many {' '.join(needed)}")
print(before, pages())
assert [getattr(many, name)(1) for name in needed] == [n + 1 for n in range(1000)[::11]]
"""


@pools
def test_code_lies_on_fewer_pages(run_python: Callable[..., str]) -> None:
    before, after = map(int, run_python(NEEDS_A_FEW).split())
    assert after * 4 < before


ALLOCATES = """
from monarch._src.proc import layout

for size in 48, 64, 160, 400, 512:
    def make(count):
        return [bytes(size - layout.BYTES_HEAD) for _ in range(count)]

    of_all = make(3 * layout.POOL // size)
    del of_all[::2]  # as imports leave it
    used = {id(one) // layout.POOL for one in of_all}
    layout.settle()
    print(sum(id(one) // layout.POOL in used for one in make(40)))
"""


@pools
def test_hardly_anything_that_is_allocated_then_lies_in_a_gap(
    run_python: Callable[..., str],
) -> None:
    in_gaps = list(map(int, run_python(ALLOCATES).split()))
    assert len(in_gaps) == 5
    # Gaps again, but few, are what this itself gives back.
    assert max(in_gaps) < 10


@pytest.mark.skipif(not layout.COUNTS_NAMES, reason="names count no references here")
def test_names_are_those_that_programs_get() -> None:
    layout.intern_names()
    kept = {name: name for name in layout._kept[-1]}
    assert set(kept) == set(NAMES.split())
    for name in "wait_for_meshes", "serves_at":  # of modules that were imported before
        assert sys.intern("".join(name)) is kept[name]


def test_the_order_names_functions_of_this_package_that_are_there() -> None:
    for line in FUNCTIONS.splitlines():
        module, *names = line.split()
        if module.startswith("monarch."):
            found = vars(importlib.import_module(module))
            assert [n for n in names if layout.function_in(found, n) is None] == [], module
