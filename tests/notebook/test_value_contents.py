"""Texts of values: equal ones mean equal contents, or say that contents were not compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pandas
import pytest

from monarch_jupyter.protocol.values import picture_of
from monarch_jupyter.rendering.value_contents import MOST_COMPARED, NOT_COMPARED, value_texts

Make = Callable[[int], Any]


def array(at: int) -> numpy.ndarray[Any, Any]:
    """2,000 numbers, of which the repr leaves out the one that differs."""
    numbers = numpy.arange(2000)
    numbers[1000] = at
    return numbers


class Model:
    def __init__(self, at: int) -> None:
        self.weights = array(at)

    def __repr__(self) -> str:
        return "Model()"


CONTENTS: dict[str, Make] = {
    "an array": array,
    "a view": lambda at: array(at).reshape(40, 50).T,
    "an array of objects": lambda at: numpy.array([*range(1500), str(at)], dtype=object),
    "a masked array": lambda at: numpy.ma.masked_equal(array(0), at),
    "a list of arrays": lambda at: [array(0), array(at)],
    "a dict of arrays": lambda at: {"weights": {"bias": array(at)}},
    "a tuple in an object": lambda at: SimpleNamespace(pair=(1, array(at))),
    "a data frame": lambda at: pandas.DataFrame({"a": array(at)}),
    "an object": Model,
    "a long list": lambda at: [*range(20_000), at],
}


@pytest.mark.parametrize("make", CONTENTS.values(), ids=CONTENTS)
def test_values_have_equal_texts_if_their_contents_are_equal_and_only_then(make: Make) -> None:
    one, same, other = value_texts([make(3), make(3), make(4)])
    assert one == same != other
    assert not one.endswith(NOT_COMPARED)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_masked_element_does_not_show_the_number_behind_it(shape: tuple[int, ...]) -> None:
    numbers = numpy.full(shape, 7.5)
    masked, shown = numpy.ma.array(numbers, mask=True), numpy.ma.array(numbers, mask=False)
    texts = [f"MaskedArray float64 {list(shape)} = {element}" for element in (None, 7.5, 7.5)]
    assert value_texts([masked, shown, numpy.ma.array(numbers)]) == texts


@pytest.mark.parametrize("make", CONTENTS.values(), ids=CONTENTS)
def test_equal_values_have_the_plain_text(make: Make) -> None:
    assert "contents" not in value_texts([make(3), make(3)])[0]


def test_tensors_of_torch_are_compared_in_every_layout_and_type() -> None:
    torch = pytest.importorskip("torch")
    kinds = (torch.float32, torch.bfloat16, torch.bool, torch.int8, torch.complex64)
    for make in (
        *[lambda at, kind=kind: torch.tensor([0] * 20 + [at], dtype=kind) for kind in kinds],
        lambda at: torch.arange(at, 20 + at).reshape(4, 5).t(),
        lambda at: torch.nn.Parameter(torch.full((20,), float(at))),
        lambda at: {"state": [torch.full((2000,), float(at))]},
        lambda at: torch.full((100,), float(at))[::7],
        lambda at: torch.tensor([1j * at] * 20).conj(),
    ):
        one, same, other = value_texts([make(0), make(0), make(1)])
        assert one == same != other
        assert not one.endswith(NOT_COMPARED)
    for unread in (torch.ones(20, device="meta"), torch.eye(20).to_sparse()):
        assert all(text.endswith(NOT_COMPARED) for text in value_texts([unread, unread + unread]))


def test_values_that_cannot_be_compared_say_so() -> None:
    class Closed:
        def __repr__(self) -> str:
            return "Closed()"

        def __reduce__(self) -> Any:
            raise OSError("as it is told to")

    one = Closed()
    assert value_texts([one, Closed()]) == [f"Closed(){NOT_COMPARED}"] * 2
    assert value_texts([one, one]) == ["Closed()"] * 2, "ranks that share it"


def test_very_large_values_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_COMPARED >= 100 << 20
    monkeypatch.setattr("monarch_jupyter.rendering.value_contents.MOST_COMPARED", 20_000)
    assert NOT_COMPARED in value_texts([array(1), array(2)])[0]


def test_plain_values_are_compared_by_their_text() -> None:
    nested = {"a": [None, (1, b"x")]}
    values: list[object] = ["ok", "ok", 1, True, 1.0, nested, {**nested}]
    assert value_texts(values) == [repr(value) for value in values]


def test_texts_that_differ_where_they_are_cut_stay_different() -> None:
    start = "".join(random.Random(1).choices("abc", k=1000))
    one, same, other = picture_of({"gpus": 3}, [start, start, start[:-1] + "z"]).texts
    assert one == same != other
