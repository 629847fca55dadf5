"""Which values of a name are the same, and the line about those that are not."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from monarch._src.mesh.map.name_conflicts import Conflicts, are_same


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
def test_these_are_the_same(one: object, other: object) -> None:
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
def test_these_are_not(one: object, other: object) -> None:
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
