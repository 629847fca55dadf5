"""Random programs with indices that are tensors.

As in `test_random_programs`: values, dtypes, aliasing and gradients are those of one process.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import monarch
from monarch.actor import ProcMesh
from monarch.simulator import Simulator
from tests.integration.tensor.test_more_random_programs import (
    Operation,
    Step,
    agree,
    flat,
    gradients,
    index,
    numbers,
    programs,
    run,
)
from tests.integration.tensor.test_random_programs import OPERATIONS, group_of, same

pytestmark = [
    pytest.mark.slow,
    # Torch warns of some layouts and dims, each once in a process.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def place(a: Any, b: Any, n: int, axis: int = 0) -> Any:
    """A number that only the ranks have: a place along an axis, from its end for odd `n`."""
    return flat(b).argmax() % a.shape[axis] - n % 2 * a.shape[axis]


def places(a: Any, n: int, axis: int) -> Any:
    """For each element of a tensor, a place along an axis."""
    return (torch.arange(a.numel()).view(a.shape) + n) % a.shape[axis]


def cell(a: Any, b: Any, n: int) -> tuple[Any, ...]:
    """The place of one element."""
    return tuple(place(a, b, n + axis, axis) for axis in range(a.dim()))


def put(a: Any, at: Any, value: Any) -> Any:
    a[at] = value
    return a


def added(a: Any, at: Any, value: Any) -> Any:
    a[at] += value
    return a


def cube(a: Any) -> Any:
    """A view with three axes."""
    return a.reshape(1, -1).unsqueeze(1) if a.dim() < 2 else a.unsqueeze(-1)


READS: dict[str, Operation] = {
    "row": lambda a, b, n: a[place(a, b, n)],
    "column": lambda a, b, n: a[..., place(a, b, n, -1)],
    "column after a slice": lambda a, b, n: a[:, place(a, b, n, 1)],
    "row under a new axis": lambda a, b, n: a[None, place(a, b, n)],
    "cell": lambda a, b, n: a[cell(a, b, n)],
    "row and number": lambda a, b, n: a[place(a, b, n), n % 2],
    "number and row": lambda a, b, n: a[n % 2, place(a, b, n, 1)],
    "row and slice": lambda a, b, n: a[place(a, b, n), n % 2 :],
    "row and rows": lambda a, b, n: a[place(a, b, n), index(a, n, 1)],
    "row, all and rows": lambda a, b, n: cube(a)[place(cube(a), b, n), :, index(cube(a), n, 2)],
    "rows, all and row": lambda a, b, n: cube(a)[index(cube(a), n), :, place(cube(a), b, n, 2)],
    "row and mask": lambda a, b, n: torch.where(a[place(a, b, n)] > 1, a[0], a[-1]),
    "rows": lambda a, b, n: a[index(a, n)],
    "rows in a table": lambda a, b, n: a[torch.stack([index(a, n), index(a, n)])],
    "pairs": lambda a, b, n: a[index(a, n)[:1], index(a, n, 1)[:1]],
    "columns": lambda a, b, n: a[..., index(a, n, -1)],
    "rows of a list": lambda a, b, n: a[[n % a.shape[0], 0]],
    "index_select": lambda a, b, n: a.index_select(-1, index(a, n, -1)),
    "gather": lambda a, b, n: a.gather(0, places(a, n, 0)),
    "take": lambda a, b, n: a.take(index(flat(a), n)),
    "take_along_dim": lambda a, b, n: a.take_along_dim(a.argsort(stable=True), -1),
    "take_along_dim of all": lambda a, b, n: a.take_along_dim(flat(a).argmin().unsqueeze(0)),
    "where": lambda a, b, n: torch.where(a > n, a, n),
    "where of an element": lambda a, b, n: torch.where(a > flat(b)[flat(b).argmin()], a, b),
    "masked_fill": lambda a, b, n: a.masked_fill(a > n, n),
    "masked_fill by an element": lambda a, b, n: a.masked_fill(a > n, flat(a)[place(a, b, n)]),
    "index_add": lambda a, b, n: a.index_add(0, index(a, n), a[index(a, n)]),
    "index_copy": lambda a, b, n: a.index_copy(0, index(a, n), a[index(a, n)] * 2),
    "index_fill": lambda a, b, n: a.index_fill(-1, index(a, n, -1), n),
    "index_put": lambda a, b, n: a.index_put((index(a, n),), a.sum().to(a.dtype)),
    "scatter": lambda a, b, n: a.scatter(-1, a.argsort(stable=True), a * 2),
    "scatter_add": lambda a, b, n: a.scatter_add(0, places(a, n, 0), a),
    "scatter_reduce": lambda a, b, n: a.scatter_reduce(0, places(a, n, 0), a, "amax"),
    "masked_scatter": lambda a, b, n: a.masked_scatter(a > n, flat(a) * 2),
    "select_scatter": lambda a, b, n: a.select_scatter(a[n % 2] * 2, 0, n % 2),
    "searchsorted": lambda a, b, n: torch.searchsorted(flat(a).sort()[0], flat(b).to(a.dtype)),
    "one_hot": lambda a, b, n: torch.nn.functional.one_hot(index(a, n), 32),
    "embedding": lambda a, b, n: torch.nn.functional.embedding(index(a, n), a),
    "topk": lambda a, b, n: a[a.topk(1, 0)[1][0].reshape(-1)],
}  # fmt: skip

IN_PLACE: dict[str, Operation] = {
    "put a row": lambda a, b, n: put(a, place(a, b, n), n),
    "put a row of another": lambda a, b, n: put(a, place(a, b, n), b.sum().to(a.dtype)),
    "put a column": lambda a, b, n: put(a, (..., place(a, b, n, -1)), n),
    "put a cell": lambda a, b, n: put(a, cell(a, b, n), n),
    "put in a row": lambda a, b, n: put(a, (place(a, b, n), slice(n % 2, None)), n),
    "put rows of a row": lambda a, b, n: put(a, (place(a, b, n), index(a, n, 1)), n),
    "put rows": lambda a, b, n: put(a, index(a, n), a[index(a, n)] * 2),
    "put columns": lambda a, b, n: put(a, (..., index(a, n, -1)), n),
    "put pairs": lambda a, b, n: put(a, (index(a, n)[:1], index(a, n, 1)[:1]), n),
    "put where": lambda a, b, n: put(a, a > n, n),
    "put where an element is": lambda a, b, n: put(a, a > n, flat(b)[:1].sum().to(a.dtype)),
    "put rows where": lambda a, b, n: put(a, a.reshape(a.shape[0], -1)[:, 0] > n, n),
    "add to a row": lambda a, b, n: added(a, place(a, b, n), n),
    "add to rows": lambda a, b, n: added(a, index(a, n), n),
    "write to a row": lambda a, b, n: a[place(a, b, n)].add_(n),
    "write to a cell": lambda a, b, n: a[cell(a, b, n)].fill_(n),
    "write to a part of a row": lambda a, b, n: a[place(a, b, n)][n % 2 :].mul_(2),
    "index_put_": lambda a, b, n: a.index_put_((places(a, n, 0),), flat(a)[:1].sum(), True),
    "index_add_": lambda a, b, n: a.index_add_(0, index(a, n), a[index(a, n)], alpha=n),
    "index_copy_": lambda a, b, n: a.index_copy_(0, index(a, n), a[index(a, n)] * 2),
    "index_fill_": lambda a, b, n: a.index_fill_(0, index(a, n), n),
    "scatter_": lambda a, b, n: a.scatter_(0, places(a, n, 0), n),
    "scatter_add_": lambda a, b, n: a.scatter_add_(0, places(a, n, 0), a.clone()),
    "masked_fill_": lambda a, b, n: a.masked_fill_(a > n, n),
    "masked_scatter_": lambda a, b, n: a.masked_scatter_(a > n, flat(a) * 2),
    "put_": lambda a, b, n: a.put_(index(flat(a), n), flat(a)[index(flat(a), n)], True),
}
INDEXED = OPERATIONS | READS | IN_PLACE


@settings(max_examples=150)
@given(steps=programs(INDEXED, 15))
def test_indices_that_are_tensors_have_the_values_of_one_process(
    pair: ProcMesh, steps: list[Step]
) -> None:
    expected = run(steps, INDEXED, numbers())
    with pair.activate():
        made = run(steps, INDEXED, numbers())
    agree(pair, made, expected)


@settings(max_examples=60)
@given(steps=programs(INDEXED, 12), written=st.integers(0, 30))
def test_parts_that_tensors_select_share_memory_as_in_one_process(
    pair: ProcMesh, steps: list[Step], written: int
) -> None:
    expected = run(steps, INDEXED, numbers())
    with pair.activate():
        made = run(steps, INDEXED, numbers())
        made[written % len(made)].zero_()
    expected[written % len(expected)].zero_()
    same(monarch.inspect(made, gpus=0), expected)


@settings(max_examples=60)
@given(steps=programs(INDEXED, 12))
def test_a_simulated_mesh_has_the_shapes_of_indexed_parts(steps: list[Step]) -> None:
    expected = run(steps, INDEXED, numbers())
    with Simulator(hosts=1, gpus=2).mesh.activate():
        made = run(steps, INDEXED, numbers())
    assert [(one.shape, one.dtype) for one in made] == [(one.shape, one.dtype) for one in expected]


# --- indices that differ by rank ------------------------------------------------------------------

RANKS: dict[str, Operation] = INDEXED | {
    "row of the rank": lambda a, b, n: a[(flat(b)[0].to(torch.int64) + n) % a.shape[0]],
    "put at the rank": lambda a, b, n: put(a, flat(b)[0].to(torch.int64) % a.shape[0], n),
}
DIMS = (("dp",), ("tp",), ("dp", "tp"), ("tp", "dp"))


def rows_of(tensor: Any, size: int) -> Any:
    """A row for each of some ranks, of the values of a tensor."""
    value = flat(tensor).to(torch.float64).sum().nan_to_num(0, 0, 0).clamp(-1e3, 1e3)
    return value * (torch.arange(2 * size).view(size, 2) + 1)


@settings(max_examples=60)
@given(steps=programs(RANKS, 12), dims=st.sampled_from(DIMS), kind=st.sampled_from(["sum", "max"]))
def test_each_rank_selects_at_its_own_places_and_gets_its_row_of_the_sum(
    square: ProcMesh, steps: list[Step], dims: tuple[str, ...], kind: str
) -> None:
    alone = [run(steps, RANKS, [*numbers(), torch.tensor(rank)]) for rank in range(4)]
    size = 2 ** len(dims)
    with square.activate():
        rank_tensor = 2 * square.rank_tensor("dp") + square.rank_tensor("tp")
        made = run(steps, RANKS, [*numbers(), rank_tensor])
        scattered = rows_of(made[-1], size).reduce(dims, kind, scatter=True)
    for rank, point in enumerate(square.extent.points()):
        same(monarch.inspect(made, dict(point)), alone[rank])
        group = group_of(rank, dims)
        rows = torch.stack([rows_of(alone[one][-1], size) for one in group])
        combined = rows.sum(0) if kind == "sum" else rows.amax(0)
        found = monarch.inspect(scattered, dict(point))
        torch.testing.assert_close(found, combined[group.index(rank)])


# --- gradients ------------------------------------------------------------------------------------

SMOOTH: dict[str, Operation] = {
    name: operation
    for name, operation in READS.items()
    if name not in ("one_hot", "searchsorted", "scatter_reduce", "topk", "index_put")
} | {
    # to copies, since a part with a gradient and its whole cannot be written
    "put a row": lambda a, b, n: put(a.clone(), place(a, b.detach(), n), b.sum()),
    "put a number in a row": lambda a, b, n: put(a.clone(), place(a, b.detach(), n), n / 2),
    "put a cell": lambda a, b, n: put(a.clone(), cell(a, b.detach(), n), b.mean()),
    "put in a row": lambda a, b, n: put(
        a.clone(), (place(a, b.detach(), n), slice(n % 2, None)), b.mean()
    ),
    "put rows of a row": lambda a, b, n: put(
        a.clone(), (place(a, b.detach(), n), index(a, n, 1)), b.mean()
    ),
    "put where": lambda a, b, n: put(a.clone(), a.detach() > n / 4, b.mean()),
    # In one process, torch refuses several values for the one place of a number; ranks do it later.
    "put rows where": lambda a, b, n: put(
        a.clone(), a.detach().sum(-1) > n / 4, b.mean(0) if a.dim() else b.mean()
    ),
    "index_put_": lambda a, b, n: a.clone().index_put_((index(a, n),), b.mean(), bool(n % 2)),
    "scatter_add_": lambda a, b, n: a.clone().scatter_add_(0, places(a, n, 0), a.sin()),
    "square": lambda a, b, n: a * a,
    "sin": lambda a, b, n: a.sin(),
}


@settings(max_examples=100)
@given(steps=programs(SMOOTH, 10))
def test_gradients_pass_indices_that_are_tensors_as_in_one_process(
    pair: ProcMesh, steps: list[Step]
) -> None:
    expected = gradients(steps, SMOOTH)
    with pair.activate():
        made = gradients(steps, SMOOTH)
    if isinstance(expected, str):
        assert made == expected
    else:
        assert not isinstance(made, str), made
        same(monarch.inspect(made, gpus=1), expected)
