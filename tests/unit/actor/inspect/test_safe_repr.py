"""What a look at a running program shows of its values, and that it runs none of its code."""

from __future__ import annotations

import functools
import os
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy
import pytest

from monarch._src.actor.inspect.safe_repr import LONGEST, attributes_of, class_text, live_text
from monarch._src.shape import Extent, Point


@dataclass
class Config:
    rate: float = 0.1
    _secret: int = 1


class Refusing(type):
    """Nothing may be asked of its classes."""

    def _refuse(self, *_: object) -> NoReturn:
        raise AssertionError("code of the class has run")

    __eq__ = __hash__ = __repr__ = __instancecheck__ = __subclasscheck__ = _refuse  # type: ignore[assignment]
    __getattribute__ = _refuse  # type: ignore[assignment]


def _refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("code of the class has run")


ASKED = [
    "repr", "str", "len", "bool", "eq", "hash", "iter", "getattr", "getattribute", "contains",
    "getitem", "format",
]  # fmt: skip
Untouchable: Any = type.__call__(
    Refusing, "Untouchable", (), {f"__{name}__": _refuse for name in ASKED}
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (12, "12"),
        (1 << 4000, "int of 4,001 bits"),
        (0.5, "0.5"),
        ("a'b", '"a\'b"'),
        ("x" * 1000, f"{'x' * 120!r} … (1,000 characters)"),
        (b"y" * 200, f"{b'y' * 120!r} … (200 bytes)"),
        ([1, [2, [3, [4]]]], "[1, [2, […]]]"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, …]"),
        ((1,), "(1,)"),
        (Extent(["hosts", "gpus"], [2, 4]), "{hosts: 2, gpus: 4}"),
        (Point(5, Extent(["hosts", "gpus"], [2, 4])), "{'hosts': 1/2, 'gpus': 1/4}"),
        ((), "()"),
        (set(), "set()"),
        ({3}, "{3}"),
        (frozenset({3}), "frozenset({3})"),
        (deque([1]), "deque([1])"),
        ({"a": {"b": 1}}, "{'a': {'b': 1}}"),
        ({}, "{}"),
        (OrderedDict(a=1), "OrderedDict({'a': 1})"),
        (defaultdict(list, a=[1]), "defaultdict({'a': [1]})"),
        (Config(), "Config(rate=0.1)"),
        (SimpleNamespace(a=1), "SimpleNamespace(a=1)"),
        (object(), "object()"),
        (Config, f"class {__name__}.Config"),
        (class_text, "function class_text"),
        (Config.__init__, "function Config.__init__"),
        ([].append, "function list.append"),
        (functools.partial(class_text, int), "partial of class_text"),
        (os, "module 'os'"),
        (numpy.zeros((100, 3), "float32"), "ndarray float32 (100, 3)"),
        (numpy.arange(3), "ndarray int64 (3,) [0, 1, 2]"),
        (numpy.float32(0.5), "0.5 (float32)"),
    ],
)  # fmt: skip
def test_a_value_is_told_in_a_line(value: object, text: str) -> None:
    assert live_text(value) == text


def test_no_code_of_a_class_runs_nor_of_its_metaclass() -> None:
    value = object.__new__(Untouchable)
    assert live_text(value) == "Untouchable()"
    assert live_text([{"it": value}]) == "[{'it': Untouchable(…)}]"
    assert attributes_of(value) == {}
    assert live_text(Untouchable).startswith("class ")


def test_a_class_that_makes_its_dictionary_up_is_not_asked_for_it() -> None:
    class Made:
        @property
        def __dict__(self) -> dict[str, object]:  # type: ignore[override]
            raise AssertionError("code of the class has run")

    assert live_text(Made()).endswith("Made()")


def test_a_value_that_holds_itself_has_an_end() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert live_text(loop) == "[[[…]]]"


def test_however_large_a_value_is_its_text_is_short() -> None:
    assert len(live_text([["x" * 100] * 100] * 100)) <= LONGEST
    assert len(live_text({"x" * 1000: list(range(10**6))})) <= LONGEST


def test_tensors_are_told_by_kind_and_shape() -> None:
    torch = pytest.importorskip("torch")
    assert live_text(torch.zeros(2, 3)) == "Tensor float32 (2, 3)"
    assert live_text(torch.zeros(2, device="meta")) == "Tensor float32 (2,) on meta"
    assert live_text(torch.nn.Parameter(torch.ones(1))) == "Parameter float32 (1,)"
    assert "in_features=2" in live_text(torch.nn.Linear(2, 3))
