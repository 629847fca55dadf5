"""`scatter` and `pull(join=True)` of arrays, frames and tensors: as they were, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pandas
import pytest
import torch

from monarch.actor import ProcMesh, this_host


@pytest.fixture
def workers() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 4}, name="workers")
    yield mesh
    mesh.stop().get(timeout=60)


HARD = numpy.ma.array(numpy.arange(16.0).reshape(8, 2), mask=[[False, True]] * 8, fill_value=-1)
HARD.harden_mask()
TIMES = pandas.date_range("2026-03-28 22:00", periods=8, freq="h", tz="Europe/Berlin", name="t")
KINDS: dict[str, Any] = {
    "masked": HARD,
    "large_masked": numpy.ma.masked_less(numpy.arange(80000.0), 3),
    "records": numpy.rec.array([(1, "a")] * 8, dtype=[("a", "i4"), ("b", "U3")]),
    "matrix": numpy.arange(16).reshape(8, 2).view(numpy.matrix),
    "big_endian": numpy.arange(8, dtype=">i4"),
    "categories": pandas.Series(list("abcabcab"), TIMES, dtype="category", name="c"),
    "frame": pandas.DataFrame({"a": range(8), "b": pandas.array([1, None] * 4)}, index=TIMES),
    "index": TIMES,
    "parameter": torch.nn.Parameter(torch.arange(16.0).reshape(8, 2)),
    "tensor": torch.ones(8, dtype=torch.bfloat16, requires_grad=True),
    "numbers": range(8),
    "text": b"abcdefgh",
}


def told(value: Any) -> list[object]:
    """What a program sees of a value."""
    names = ("dtype", "fill_value", "hardmask", "requires_grad", "name", "freq")
    return [type(value), repr(value), *(repr(getattr(value, name, None)) for name in names)]


def test_values_of_many_libraries_come_back_as_they_were(workers: ProcMesh) -> None:
    workers.scatter(**KINDS)
    back = {name: workers.pull(name, join=True) for name in KINDS}
    assert {name: told(value) for name, value in back.items()} == {
        name: told(value) for name, value in KINDS.items()
    }
    workers.push(**KINDS)
    back = {name: workers.pull(name).item(gpus=3) for name in KINDS}
    assert {name: told(value) for name, value in back.items()} == {
        name: told(value) for name, value in KINDS.items()
    }


def test_parts_that_would_lose_something_bind_nothing_and_name_the_ranks(
    workers: ProcMesh,
) -> None:
    sparse = torch.eye(4).to_sparse()
    with pytest.raises(TypeError) as refused:
        workers.scatter(good=[1, 2, 3, 4], batch=sparse)
    assert str(refused.value) == (
        "scatter: batch, of type Tensor, is sparse, and torch has no slices of it: give its "
        "to_dense(), or push all of it and let each rank take its own"
    )
    with pytest.raises(NameError, match="no rank of workers has a name 'good'"):
        workers.pull("good")
    for rank, letters in enumerate(("ab", "ab", "bc", "ab")):
        workers.slice(gpus=rank).push(labels=pandas.Series(list(letters), dtype="category"))
    with pytest.raises(ValueError, match=r"^pull: labels has the dtype Cat") as differ:
        workers.pull("labels", join=True)
    text = str(differ.value)
    assert text.startswith("pull: labels has the dtype CategoricalDtype(categories=['a', 'b'], ")
    assert " on workers[gpus=0] and the dtype CategoricalDtype(categories=['b', 'c']" in text
    assert text.endswith(" on workers[gpus=2]: make them equal there, or pull it without join=True")
