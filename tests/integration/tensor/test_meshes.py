"""`reduce`, `to_mesh` and slices of meshes, on real ranks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import HostMesh, ProcMesh, attach_to_workers, shutdown_context
from tests.integration.tensor.conftest import TORCH
from tests.workers import TRUST_ALL, workers

pytestmark = pytest.mark.slow


def number(mesh: ProcMesh) -> Any:
    """The rank of each in a square: 0 to 3."""
    return (mesh.rank_tensor("dp") * 2 + mesh.rank_tensor("tp")).to(torch.float32)


def on_all(tensor: Any) -> list[Any]:
    """Its values by rank."""
    return [monarch.inspect(tensor, dict(point)).tolist() for point in tensor.mesh.extent.points()]


def sizes_of_new_tensors() -> dict[str, int]:
    """The sizes of the mesh on which torch makes tensors now."""
    new: Any = torch.ones(1)
    return new.mesh.sizes


def test_values_are_combined_along_dims(square: ProcMesh) -> None:
    rank = number(square)
    assert on_all(rank.reduce("tp")) == [1.0, 1.0, 5.0, 5.0]
    assert on_all(rank.reduce("dp", "max")) == [2.0, 3.0, 2.0, 3.0]
    assert on_all(rank.reduce(("dp", "tp"), "avg")) == [1.5] * 4
    assert on_all(monarch.reduce({"a": rank}, reduction="min")["a"]) == [0.0] * 4
    assert on_all((rank + 1).reduce("dp", "product")) == [3.0, 8.0, 3.0, 8.0]
    assert on_all(rank.to(torch.int64).reduce((), "bor")) == [3] * 4


def test_many_tensors_are_combined_together_by_dtype(
    square: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch._src.tensor.methods.BUCKET_BYTES", 40)
    with square.activate():
        rank = number(square)
        many = {
            "matrix": torch.ones(2, 3) * rank,
            "scalar": rank,
            "counts": [torch.ones(4, dtype=torch.int64), "no tensor"],
            "turned": torch.arange(6.0).reshape(2, 3).t() + rank,
            "large": torch.zeros(3, 5) + rank,
        }
        found = monarch.reduce(many, "tp")
    assert on_all(found["scalar"]) == [1.0, 1.0, 5.0, 5.0]
    assert on_all(found["matrix"])[2] == [[5.0] * 3] * 2
    assert on_all(found["counts"][0])[0] == [2] * 4
    assert found["counts"][1] == "no tensor"
    assert on_all(found["turned"])[0] == [[1.0, 7.0], [3.0, 9.0], [5.0, 11.0]]
    assert on_all(found["large"])[3] == [[5.0] * 5] * 3
    found["scalar"].add_(1)  # each has memory of its own
    assert on_all(found["matrix"])[0] == [[1.0] * 3] * 2
    assert monarch.reduce_([rank, many["matrix"]], "tp", "max")[0] is rank
    assert on_all(rank) == [1.0, 1.0, 3.0, 3.0]
    assert on_all(many["matrix"])[0] == [[1.0] * 3] * 2
    alone = monarch.reduce([number(square).slice_mesh(dp=0, tp=1)] * 2)
    assert [monarch.inspect(one).tolist() for one in alone] == [1.0, 1.0]


def test_an_error_in_one_of_many_comes_before_anything_is_done(square: ProcMesh) -> None:
    rank = number(square)
    with pytest.raises(ValueError, match="cannot combine values"):
        monarch.reduce_([rank, rank > 1], "tp")
    with pytest.raises(KeyError, match="no dim 'gpus'"):
        monarch.reduce([rank, rank], "gpus")
    assert on_all(rank) == [0.0, 1.0, 2.0, 3.0]


def test_many_gradients_are_combined_in_a_compiled_step(square: ProcMesh) -> None:
    with square.activate():
        weights = [torch.ones(3, requires_grad=True), torch.ones(2, 3, requires_grad=True)]

        @monarch.compile
        def step(x: Any) -> Any:
            loss = (weights[0] * x).sum() + (weights[1] * x).sum()
            means = monarch.reduce(torch.autograd.grad(loss, weights), ("dp", "tp"), "avg")
            with torch.no_grad():
                for weight, mean in zip(weights, means, strict=True):
                    weight.sub_(mean)
            return loss.detach()

        x = number(square) + torch.zeros(3)
        for _ in range(4):
            step(x)
    assert on_all(weights[0].detach()) == [[1 - 4 * 1.5] * 3] * 4
    assert on_all(weights[1].detach())[3] == [[1 - 4 * 1.5] * 3] * 2


def test_values_are_stacked_in_the_order_of_the_dims(square: ProcMesh) -> None:
    rank = number(square)
    assert on_all(rank.reduce("tp", "stack")) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert on_all(rank.reduce(("tp", "dp"), "stack")) == [[0, 2, 1, 3]] * 4
    assert on_all((rank > 1).reduce((), "stack")) == [[False, False, True, True]] * 4


def test_scatter_gives_each_rank_one_row(square: ProcMesh) -> None:
    with square.activate():
        rows = number(square) + torch.tensor([0.0, 10.0])
    assert on_all(rows.reduce("tp", scatter=True)) == [1.0, 21.0, 5.0, 25.0]
    assert on_all(rows.reduce("tp", "stack", scatter=True)) == [
        [0.0, 1.0], [10.0, 11.0], [2.0, 3.0], [12.0, 13.0],
    ]  # fmt: skip


def test_results_go_where_they_are_wanted(square: ProcMesh) -> None:
    rank = number(square)
    out = torch.zeros_like(rank)
    assert rank.reduce("tp", out=out) is out
    assert on_all(out) == [1.0, 1.0, 5.0, 5.0]
    assert monarch.reduce_(rank, "dp") is rank
    assert on_all(rank) == [2.0, 4.0, 2.0, 4.0]
    one = number(square).slice_mesh(tp=1).reduce("dp", mesh=square.slice(tp=1))
    assert on_all(one) == [4.0, 4.0]


def test_a_row_of_a_matrix_on_each_rank_is_multiplied_as_the_whole(square: ProcMesh) -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    with square.activate():
        everything = monarch.to_mesh(whole, square)
        at = (number(square).to(torch.int64)).reshape(1)
        row = everything.index_select(0, at)
        product = (row @ everything.t()).reduce((), "stack").squeeze(1)
    assert torch.equal(monarch.inspect(product, dp=1, tp=1), whole @ whole.t())


def test_a_part_is_broadcast_to_the_dims_that_it_lacks(square: ProcMesh) -> None:
    rank = number(square)
    assert on_all(rank.slice_mesh(tp=1).to_mesh(square)) == [1.0, 1.0, 3.0, 3.0]
    assert on_all(rank.slice_mesh(dp=1, tp=0).to_mesh(square)) == [2.0] * 4
    left, right = square.slice(tp=0), square.slice(tp=1)
    assert on_all(rank.slice_mesh(tp=0).to_mesh(right)) == [0.0, 2.0]
    there = rank.slice_mesh(tp=0).to_mesh(right) + 1
    assert on_all(there.to_mesh(left)) == [1.0, 3.0]
    assert rank.to_mesh(square) is rank


def test_a_slice_of_a_tensor_shares_its_memory(square: ProcMesh) -> None:
    rank = number(square)
    rank.slice_mesh(dp=1).add_(10)
    assert on_all(rank) == [0.0, 1.0, 12.0, 13.0]


def test_meshes_nest_and_an_operation_runs_on_those_of_its_tensors(square: ProcMesh) -> None:
    part = square.slice(dp=0)
    with square.activate():
        outer: Any = torch.ones(1)
        with part.activate():
            inner: Any = torch.ones(1)
            assert (outer + 1).mesh.sizes == {"dp": 2, "tp": 2}
        assert sizes_of_new_tensors() == {"dp": 2, "tp": 2}
    assert inner.mesh.sizes == {"tp": 2}
    with pytest.raises(ValueError, match=r"two meshes, square .*to_mesh"):
        outer + inner
    assert on_all(outer.slice_mesh(dp=0) + inner) == [[2.0], [2.0]]


def test_what_cannot_be_combined_is_refused_before_it_is_sent(square: ProcMesh) -> None:
    x = number(square)
    with pytest.raises(KeyError, match="no dim 'gpus'; it has dp, tp"):
        x.reduce("gpus")
    with pytest.raises(ValueError, match="named twice"):
        x.reduce(("dp", "dp"))
    with pytest.raises(ValueError, match="give one of stack, sum"):
        x.reduce("dp", "median")
    with pytest.raises(ValueError, match="first axis"):
        x.reduce("dp", scatter=True)
    with pytest.raises(ValueError, match="needs integers"):
        x.reduce("dp", "band")
    with pytest.raises(ValueError, match="avg needs floating point"):
        x.to(torch.int64).reduce("dp", "avg")
    with pytest.raises(ValueError, match=r"cannot combine values of torch\.bool"):
        (x > 1).reduce("dp")
    for dtype, instead in ((torch.complex64, "view_as_real"), (torch.float8_e4m3fn, "float32")):
        with pytest.raises(ValueError, match=rf"cannot combine values of {dtype}; .*{instead}"):
            x.to(dtype).reduce("dp")
    with pytest.raises(ValueError, match="out has shape"):
        x.reduce("dp", "stack", out=x)
    with pytest.raises(RuntimeError, match=r"monarch\.grad_function"):
        x.clone().requires_grad_().reduce("dp")
    with pytest.raises(ValueError, match="dim 'dp' has to be in both"):
        x.to_mesh(square.slice(dp=0))
    assert on_all(x) == [0.0, 1.0, 2.0, 3.0]


def test_gradients_pass_a_reduce_as_a_function_says(square: ProcMesh) -> None:
    @monarch.grad_function
    def summed(x: Any) -> Any:
        return x.reduce("tp"), lambda gradient: gradient * 2

    with square.activate():
        weight = torch.ones(2, requires_grad=True)
        summed(weight * number(square)).sum().backward()
    assert on_all(weight.grad) == [[0.0] * 2, [2.0] * 2, [4.0] * 2, [6.0] * 2]


def test_a_copy_may_go_to_another_stream(square: ProcMesh) -> None:
    comm = monarch.Stream("comm")
    rank = number(square)
    there = rank.to_mesh(square, stream=comm)
    rank.add_(10)
    with comm.activate(), square.activate():
        found = there + torch.ones(())
    assert on_all(found) == [1.0, 2.0, 3.0, 4.0]
    across = monarch.to_mesh([rank.slice_mesh(tp=1)], square.slice(tp=0), comm)[0]
    assert on_all(across) == [11.0, 13.0]
    assert "stream 'comm'" in repr(across)
    local = monarch.to_mesh(torch.ones(1), square, stream=comm)
    assert "stream 'comm'" in repr(local)


def test_a_part_of_a_tensor_with_gradients_is_refused(square: ProcMesh) -> None:
    with square.activate():
        weight: Any = torch.ones(2, requires_grad=True)
        with pytest.raises(RuntimeError, match=r"slice_mesh has no gradient: slice tensor\.detach"):
            (weight * 2).slice_mesh(dp=0)
        with torch.no_grad():
            assert on_all(weight.slice_mesh(dp=0)) == [[1.0, 1.0]] * 2


def test_threads_that_move_tensors_at_once_wait_for_no_one(square: ProcMesh) -> None:
    left, right = square.slice(tp=0), square.slice(tp=1)
    size = 1 << 20  # more than a socket holds, so that a send waits for its receiver
    found: list[Any] = []

    def move(start: Any, there: ProcMesh, back: ProcMesh) -> None:
        tensor = start
        for _ in range(6):
            tensor = tensor.to_mesh(there).to_mesh(back)
        found.append(monarch.inspect(tensor, dp=1)[:2].tolist())

    with square.activate():
        whole = torch.zeros(size) + number(square)
    starts = [(whole.slice_mesh(tp=0), right, left), (whole.slice_mesh(tp=1), left, right)] * 2
    threads = [threading.Thread(target=move, args=start) for start in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[2.0, 2.0]] * 2 + [[3.0, 3.0]] * 2


def test_a_mesh_is_a_table_of_its_ranks(square: ProcMesh) -> None:
    assert square.to_table() == "dp  tp=0  tp=1\n 0     0     1\n 1     2     3"
    assert square.slice(dp=1).to_table() == "tp=0  tp=1\n   2     3"
    assert square.slice(dp=1, tp=0).to_table() == "rank\n   2"


def test_a_mesh_has_the_names_of_monarchs_device_mesh(square: ProcMesh) -> None:
    assert on_all(square.rank("tp")) == [0, 1, 0, 1]
    assert on_all(square.rank(("dp", "tp"))) == [0, 1, 2, 3]
    assert on_all(square.rank(["tp", "dp"])) == [0, 2, 1, 3]
    assert {dim: on_all(one) for dim, one in square.ranks.items()} == {
        "dp": [0, 0, 1, 1], "tp": [0, 1, 0, 1],
    }  # fmt: skip
    with pytest.raises(KeyError, match="no dim 'gpus'; it has dp, tp"):
        square.rank("gpus")
    for dims in ((), ("dp", "dp")):
        with pytest.raises(ValueError, match="give the name of a dim"):
            square.rank(dims)
    assert on_all(square.slice(tp=1).rank("dp")) == [0, 1]
    assert not callable(square)  # functions that take a mesh, or one that gives it, tell them apart


def test_a_mesh_is_active_without_a_block_until_it_is_deactivated(square: ProcMesh) -> None:
    part = square.slice(dp=0)
    square.activate()
    try:
        assert sizes_of_new_tensors() == {"dp": 2, "tp": 2}
        part.activate()
        assert sizes_of_new_tensors() == {"tp": 2}
        with pytest.raises(RuntimeError, match="still active; end that first"):
            square.deactivate()
        square.slice(dp=0).deactivate()  # an equal slice
        assert sizes_of_new_tensors() == {"dp": 2, "tp": 2}
        part.deactivate()  # it is not active
    finally:
        square.deactivate()
    assert type(torch.ones(1)) is torch.Tensor
    square.deactivate()


def test_a_block_ends_what_was_activated_in_it_without_a_block(square: ProcMesh) -> None:
    part = square.slice(dp=1)
    with square.activate() as mesh:
        assert mesh is square
        part.activate()
        with monarch.no_mesh.activate():
            part.activate()
            assert sizes_of_new_tensors() == {"tp": 2}
        with monarch.Stream("side").activate():
            square.activate()
            assert sizes_of_new_tensors() == {"dp": 2, "tp": 2}
        assert sizes_of_new_tensors() == {"tp": 2}
    assert type(torch.ones(1)) is torch.Tensor
    with square.activate():
        square.deactivate()  # the end of its block has no effect then
        assert type(torch.ones(1)) is torch.Tensor
    assert type(torch.ones(1)) is torch.Tensor


def deactivates_and_fails(mesh: ProcMesh) -> None:
    with mesh.activate():
        mesh.deactivate()
        raise ZeroDivisionError


def test_an_error_leaves_no_mesh_active(square: ProcMesh) -> None:
    with pytest.raises(ZeroDivisionError):
        deactivates_and_fails(square)
    with pytest.raises(ValueError, match="no dim 'none'"), square.activate() as mesh:
        monarch.fetch_shard(torch.ones(1), none=mesh.size())
    assert type(torch.ones(1)) is torch.Tensor


def test_ranks_of_two_hosts_combine_their_values(agent_errors: object) -> None:
    with workers(2) as found:
        hosts: HostMesh = attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in found])
        with hosts.spawn_procs({"gpus": 2}, name="far", preload=TORCH) as procs:
            rank = procs.rank_tensor("hosts") * 2 + procs.rank_tensor("gpus")
            assert on_all(rank.reduce()) == [6] * 4
            assert on_all(rank.reduce("hosts")) == [2, 4, 2, 4]
        shutdown_context(reason="the workers are about to end")
