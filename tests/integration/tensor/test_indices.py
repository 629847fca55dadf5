"""`x[i]` with a number that only the ranks have: a view of `x` on each rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ProcMesh

pytestmark = pytest.mark.slow


def values(tensor: Any) -> list[Any]:
    """Its values by rank."""
    return [monarch.inspect(tensor, gpus=rank).tolist() for rank in range(2)]


def test_each_rank_selects_and_writes_at_its_own_place(pair: ProcMesh) -> None:
    with pair.activate():
        rank = pair.rank_tensor("gpus")
        x = torch.arange(6.0).reshape(2, 3)
        row = x[rank]
        row += 10
        x[1 - rank, rank] = -1
        x[:, -1 - rank] *= 2
    assert values(x) == [[[10, 11, 24], [-1, 4, 10]], [[0, -2, 2], [13, 28, 15]]]
    assert values(row) == [[10, 11, 24], [13, 28, 15]]
    assert values(row[1:]) == [[11, 24], [28, 15]]


def test_a_place_out_of_range_fails_what_is_read_or_written_there(pair: ProcMesh) -> None:
    with pair.activate():
        x, y, z = (torch.zeros(3, 2) for _ in range(3))
        at = torch.full((), 2) + pair.rank_tensor("gpus")
        bad = x[at] + 1  # the line that fails
        y[at] = 1
        z[at][1:].add_(1)
    assert monarch.inspect(bad, gpus=0).tolist() == [1.0, 1.0]
    with pytest.raises(monarch.RemoteException, match="out of range") as raised:
        monarch.inspect(bad, gpus=1)
    assert raised.value.source == "bad = x[at] + 1  # the line that fails"
    assert values(x) == [[[0.0, 0.0]] * 3] * 2  # only read
    for written, last in ((y, [1.0, 1.0]), (z, [0.0, 1.0])):
        assert monarch.inspect(written, gpus=0).tolist()[2] == last
        with pytest.raises(monarch.RemoteException, match="out of range"):
            monarch.inspect(written, gpus=1)


def test_gradients_pass_a_part_that_cannot_be_written(pair: ProcMesh) -> None:
    def run(write: Callable[[Any, Any], None]) -> list[Any]:
        weight = torch.arange(6.0).reshape(2, 3).requires_grad_()
        x, at = weight * 2, torch.ones(2, dtype=torch.int64).sum() - 1
        write(x, at)
        (x[at] * x[at, 0]).sum().backward()
        return [weight.grad, x.detach()]

    def put(x: Any, at: Any) -> None:
        x[at] = x[at] + x[0, at]

    expected = [one.tolist() for one in run(put)]
    with pair.activate():
        made = run(put)
        for write in (lambda x, at: x[at].add_(1), lambda x, at: x[at, :2].zero_()):
            with pytest.raises(RuntimeError, match=r"view and is being modified inplace.*cloning"):
                run(write)
        x = torch.zeros(2, 3)
        with pytest.raises(RuntimeError, match="modified inplace"):
            x[torch.ones(1, dtype=torch.int64)[0]].add_(torch.ones(3, requires_grad=True))
    assert [values(one)[1] for one in made] == expected


def test_gradients_of_a_value_that_is_put_under_a_mask(pair: ProcMesh) -> None:
    def run() -> list[Any]:
        leaf = torch.arange(3.0).requires_grad_()
        x, y = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3)
        x[x > 2] = leaf.sum()
        x[x[:, 0] > 5] = leaf * 2
        y[y.sum() > 1] = leaf[None]
        (x * y * x).sum().backward()
        return [leaf.grad, x.detach(), y.detach()]

    expected = [one.tolist() for one in run()]
    with pair.activate():
        made = run()
    assert [values(one)[0] for one in made] == expected


def test_gradients_of_a_value_that_is_put_in_a_number_under_a_truth_value(pair: ProcMesh) -> None:
    def gradients() -> Any:
        leaf = torch.arange(3.0).requires_grad_()
        for threshold in (0.5, 3.5):
            number = leaf.sum().clone()
            number[number.detach() > threshold] = leaf[1] * 2
            (number * number).backward()
        return leaf.grad

    with pair.activate():
        made = gradients()
    assert torch.equal(monarch.inspect(made, gpus=1), gradients())


def test_a_compiled_function_selects_with_the_places_of_its_call(pair: ProcMesh) -> None:
    @monarch.compile
    def step(x: Any, at: Any) -> Any:
        part = x[at]
        part += 1
        return part.sum()

    @monarch.compile
    def returns(x: Any, at: Any) -> Any:
        return x[at]

    @monarch.compile
    def from_outside(part: Any) -> Any:
        return part.add_(1)

    with pair.activate():
        x = torch.zeros(4, 2)
        sums = [step(x, torch.full((), place)) for place in (0, 1, 2, 2, 3)]
        with pytest.raises(RuntimeError, match=r"return x\[i\]\.clone\(\)"):
            returns(x, torch.full((), 1))
        with pytest.raises(RuntimeError, match=r"write x\[i\] = y"):
            from_outside(x[torch.full((), 1)])
    assert monarch.inspect(sums) == [2.0, 2.0, 2.0, 4.0, 2.0]
    assert values(x) == [[[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]] * 2


def test_a_part_is_copied_moved_and_lent_and_its_place_in_memory_is_not_told(
    pair: ProcMesh,
) -> None:
    with pair.activate():
        x: Any = torch.arange(6.0).reshape(3, 2)
        row = x[pair.rank_tensor("gpus") + 1]
        other = copy.deepcopy(row)
        row.mul_(2)
        moved = row.slice_mesh(gpus=1).to_mesh(pair)
        there, borrow = monarch.Stream("other").borrow(row, mutable=True)
        there.add_(1)
        borrow.drop()
        with pytest.raises(ValueError, match=r"as_strided .* use x\[i\]\.clone\(\)"):
            row.as_strided((1,), (1,), 0)
    assert values(other) == [[2.0, 3.0], [4.0, 5.0]]
    assert values(moved) == [[8.0, 10.0]] * 2
    assert [rows[1:] for rows in values(x)] == [
        [[5.0, 7.0], [4.0, 5.0]], [[2.0, 3.0], [9.0, 11.0]],
    ]  # fmt: skip


def test_a_place_on_another_mesh_is_refused(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.zeros(3)
    with pair.slice(gpus=0).activate():
        at = torch.full((), 1)
    with pytest.raises(ValueError, match="two meshes"):
        x[at]
    with pytest.raises(ValueError, match="two meshes"):
        x[at] = 1
