"""The same random program in this process and on a mesh: values, dtypes and aliasing are equal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import monarch
from monarch.actor import ProcMesh
from monarch.simulator import Simulator

pytestmark = pytest.mark.slow

Step = tuple[str, int, int, int]


def _leaf(values: list[Any], n: int) -> Any:
    dtype = (torch.float32, torch.float64, torch.int64, torch.int32)[n % 4]
    return torch.arange(6, dtype=dtype).reshape(2, 3) - n


def _cat(a: Any, b: Any, n: int) -> Any:
    return torch.cat([a.reshape(-1), b.reshape(-1)])[:12]


OPERATIONS: dict[str, Callable[[Any, Any, int], Any]] = {
    # arithmetic, with promotion of dtypes and broadcasting
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b * n,
    "mul": lambda a, b, n: a * (n - 2),
    "scale": lambda a, b, n: a * (n / 4),
    "divide": lambda a, b, n: a / (abs(n) + 1),
    "compare": lambda a, b, n: (a > n).to(torch.int64),
    "where": lambda a, b, n: torch.where(a > n, a, b),
    "clamp": lambda a, b, n: a.clamp(-n, n),
    "sum": lambda a, b, n: a.sum(0, keepdim=bool(n % 2)),
    "softmax": lambda a, b, n: a.to(torch.float64).softmax(-1),
    "cat": _cat,
    "sort": lambda a, b, n: a.reshape(-1).sort(descending=bool(n % 2))[0],
    "argmax": lambda a, b, n: a.argmax(),
    "split": lambda a, b, n: a.reshape(-1).split(2)[0],
    "cast": lambda a, b, n: a.to((torch.float32, torch.float64, torch.int64)[n % 3]),
    "like": lambda a, b, n: torch.full_like(a, n),
    # views
    "transpose": lambda a, b, n: a.t() if a.dim() == 2 else a,
    "row": lambda a, b, n: a[n % len(a)] if a.dim() else a,
    "slice": lambda a, b, n: a[n % 2 :: 2] if a.dim() else a,
    "flat": lambda a, b, n: a.view(-1) if a.is_contiguous() else a.reshape(-1),
    "expand": lambda a, b, n: a.unsqueeze(0),
    "detach": lambda a, b, n: a.detach(),
    # in place; from a copy, since torch looks for overlaps when it runs, which is on the ranks
    "add_": lambda a, b, n: a.add_(n),
    "fill_": lambda a, b, n: a.fill_(n),
    "copy_": lambda a, b, n: a.copy_(b.clone()),
    "set": lambda a, b, n: _set(a, n),
    "mul_": lambda a, b, n: a.mul_(b.clone()),
}


def _set(a: Any, n: int) -> Any:
    if a.dim():
        a[n % len(a)] = n
    return a


STEPS = st.lists(
    st.tuples(
        st.sampled_from(sorted(OPERATIONS)), st.integers(0, 30), st.integers(0, 30),
        st.integers(0, 5),
    ),
    max_size=25,
)  # fmt: skip


def run(steps: list[Step]) -> list[Any]:
    """All tensors that a program makes; a step that torch refuses makes its error's name."""
    made: list[Any] = [_leaf([], 0), _leaf([], 1), _leaf([], 2).clone()]
    for name, first, second, n in steps:
        a, b = made[first % len(made)], made[second % len(made)]
        try:
            made.append(OPERATIONS[name](a, b, n))
        except (RuntimeError, IndexError, ValueError):
            made.append(_leaf([], n))
    return made


def same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, equal_nan=True)


def steps_of(tensor: Any) -> list[int]:
    """The strides of axes that have a second element; torch's kernels differ in the others'."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@settings(max_examples=60)
@given(steps=STEPS)
def test_a_program_has_the_values_that_it_has_in_one_process(
    pair: ProcMesh, steps: list[Step]
) -> None:
    expected = run(steps)
    with pair.activate():
        made = run(steps)
    for one, other in zip(made, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert steps_of(one) == steps_of(other)
    for rank in range(2):
        same(monarch.inspect(made, gpus=rank), expected)


@settings(max_examples=30)
@given(steps=STEPS, written=st.integers(0, 30))
def test_what_shares_memory_in_one_process_shares_it_on_the_ranks(
    pair: ProcMesh, steps: list[Step], written: int
) -> None:
    expected = run(steps)
    target = expected[written % len(expected)]
    with pair.activate():
        made = run(steps)
        made[written % len(made)].zero_()
    target.zero_()
    same(monarch.inspect(made, gpus=1), expected)


@settings(max_examples=100)
@given(steps=STEPS)
def test_a_simulated_mesh_has_the_shapes_and_the_memory_of_one_process(steps: list[Step]) -> None:
    expected = run(steps)
    storages = {one.untyped_storage()._cdata: one.untyped_storage() for one in expected}
    simulator = Simulator(hosts=1, gpus=2)
    with simulator.mesh.activate():
        made = run(steps)
    assert [(one.shape, one.dtype) for one in made] == [(one.shape, one.dtype) for one in expected]
    report = simulator.report()
    assert report.live_bytes == sum(storage.nbytes() for storage in storages.values())
    assert report.live_bytes <= report.peak_bytes
    del made
    assert simulator.report().live_bytes == 0


SMOOTH: dict[str, Callable[[Any, Any, int], Any]] = {
    "add": lambda a, b, n: a + b,
    "mul": lambda a, b, n: a * b / 10,
    "tanh": lambda a, b, n: a.tanh(),
    "mean": lambda a, b, n: a - a.mean(0, keepdim=True),
    "matmul": lambda a, b, n: (a @ b.t()) @ b / 10,
    "transposed": lambda a, b, n: a.t().contiguous().view(2, 3),
    "masked": lambda a, b, n: torch.where(a > 0, a, b),
    "scaled": lambda a, b, n: a.clone().mul_(n / 3),
    "halves": lambda a, b, n: torch.cat([a[:1], b[1:]]),
}


def gradients(steps: list[tuple[str, int, int, int]]) -> list[Any]:
    """The gradients of what a program makes of three matrices."""
    leaves = [
        (torch.arange(6.0, dtype=torch.float64).reshape(2, 3) / 6 - n / 3).requires_grad_()
        for n in range(3)
    ]
    made: list[Any] = list(leaves)
    for name, first, second, n in steps:
        made.append(SMOOTH[name](made[first % len(made)], made[second % len(made)], n))
    total: Any = sum(one.sum() for one in made)
    total.backward()
    return [leaf.grad for leaf in leaves]


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(sorted(SMOOTH)), st.integers(0, 30), st.integers(0, 30),
            st.integers(0, 5),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_gradients_are_those_of_one_process(
    pair: ProcMesh, steps: list[tuple[str, int, int, int]]
) -> None:
    expected = gradients(steps)
    with pair.activate():
        made = gradients(steps)
    same(monarch.inspect(made, gpus=1), expected)


@settings(max_examples=20)
@given(steps=STEPS, written=st.integers(0, 30))
def test_four_ranks_have_the_values_and_the_aliasing_of_one_process(
    square: ProcMesh, steps: list[Step], written: int
) -> None:
    expected = run(steps)
    with square.activate():
        made = run(steps)
        made[written % len(made)].zero_()
    expected[written % len(expected)].zero_()
    for point in square.extent.points():
        same(monarch.inspect(made, dict(point)), expected)


# --- operations of several ranks, beside a list of the tensors of all ranks -----------------------

DIMS = (("dp",), ("tp",), ("dp", "tp"), ("tp", "dp"))
KINDS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda rows: rows.sum(0),
    "product": lambda rows: rows.prod(0),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
    "bor": lambda rows: functools.reduce(torch.bitwise_or, rows.unbind(0)),
}


def group_of(rank: int, dims: tuple[str, ...]) -> list[int]:
    """The ranks of a square that combine their values with that rank, in order."""
    at = {"dp": rank // 2, "tp": rank % 2}
    found = [at]
    for dim in dims:
        found = [{**one, dim: index} for one in found for index in range(2)]
    return [one["dp"] * 2 + one["tp"] for one in found]


def moved(ranks: list[Any], name: str, dims: tuple[str, ...], kind: str, n: int) -> list[Any]:
    """A step of a program on a list of the tensors of four ranks."""
    made: list[Any] = []
    for rank in range(4):
        group = group_of(rank, dims)
        rows = torch.stack([ranks[one] for one in group])
        place = group.index(rank)
        parts = rows.view(len(group), len(group), -1)
        if name in ("reduce", "reduce_"):
            made.append(KINDS[kind](rows))
        elif name == "stack":
            made.append(rows[n % len(group)])
        elif name == "scatter":
            made.append(KINDS[kind](parts)[place].repeat(len(group)))
        elif name == "exchange":
            made.append(parts[:, place].reshape(-1))
        else:
            made.append(ranks[{"dp": n % 2 * 2 + rank % 2, "tp": rank // 2 * 2 + n % 2}[dims[0]]])
    return [one % 97 for one in made]


def moved_on_mesh(x: Any, name: str, dims: tuple[str, ...], kind: str, n: int) -> Any:
    """The same step on a mesh."""
    size = 2 ** len(dims)
    if name == "reduce":
        found = x.reduce(dims, kind)
    elif name == "reduce_":
        found = monarch.reduce_([x.clone()], dims, kind)[0]
    elif name == "stack":
        found = x.reduce(dims, "stack")[n % size]
    elif name == "scatter":
        found = x.view(size, -1).reduce(dims, kind, scatter=True).repeat(size)
    elif name == "exchange":
        found = x.view(size, -1).reduce_(dims, "stack", scatter=True).view(-1)
    else:
        found = x.slice_mesh(**{dims[0]: n % 2}).to_mesh(x.mesh)
    return found % 97


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["reduce", "reduce_", "stack", "scatter", "exchange", "broadcast"]),
            st.sampled_from(DIMS), st.sampled_from(sorted(KINDS)), st.integers(0, 3),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_values_are_combined_and_moved_as_in_a_list_of_all_ranks(
    square: ProcMesh, steps: list[tuple[str, tuple[str, ...], str, int]]
) -> None:
    expected = [torch.arange(4) * 3 + 5 * rank for rank in range(4)]
    with square.activate():
        x = torch.arange(4) * 3 + 5 * (2 * square.rank_tensor("dp") + square.rank_tensor("tp"))
        for step in steps:
            x = moved_on_mesh(x + square.rank_tensor("tp"), *step)
            expected = moved([one + rank % 2 for rank, one in enumerate(expected)], *step)
    found = [monarch.inspect(x, dict(point)) for point in square.extent.points()]
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]
