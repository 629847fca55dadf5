"""Tensors of a mesh on GPUs: operations, gradients, collectives, regions, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import monarch
from monarch.actor import ProcMesh
from tests.gpu.conftest import TORCH, Procs

torch: Any = pytest.importorskip("torch")


@pytest.fixture
def tensors(spawn_procs: Procs) -> ProcMesh:
    """Two procs, `gpus` 0 and 1, without tensors so far."""
    return spawn_procs({"gpus": 2}, name="tensors", preload=TORCH)


def values(tensor: Any) -> list[Any]:
    """Of each rank."""
    return [monarch.inspect(tensor, gpus=rank).tolist() for rank in range(tensor.mesh.size())]


def devices(*tensors: Any) -> set[str]:
    """Where ranks have these tensors."""
    found = monarch.remote(lambda *every: [str(one.device.type) for one in every])
    return {device for told in found.call(*tensors).get().values() for device in told}


def test_the_mesh_has_all_tensors_on_gpus(tensors: ProcMesh) -> None:
    with tensors.activate(device="cuda"):
        x = torch.ones(2, 3)
        y = torch.arange(6.0, device="cuda").reshape(3, 2)
        rank = tensors.rank_tensor("gpus")
        lifted = torch.tensor([1.0, 2.0])
        total = (x @ y) * (rank + 1) + lifted
        empty = torch.empty(0, 3)
        made = monarch.remote(torch.zeros_like)(x)
    assert devices(x, y, rank, lifted, total, empty, made) == {"cuda"}
    assert (total.device.type, total.is_cuda, total.is_cpu, total.get_device()) == (
        "cuda", True, False, 0,
    )  # fmt: skip
    assert "on GPUs" in repr(total)
    plain = torch.ones(2, 3) @ torch.arange(6.0).reshape(3, 2)
    here = [(plain * (at + 1) + torch.tensor([1.0, 2.0])).tolist() for at in range(2)]
    assert values(total) == here
    assert monarch.inspect(total).device.type == "cpu"


def test_the_first_tensor_may_choose_the_gpus(tensors: ProcMesh) -> None:
    with tensors.activate():
        x = torch.ones(2, device="cuda")
        assert x.cuda() is x
        assert x.to("cuda") is x
        y = x.to("cuda", torch.float64).to(x) + torch.zeros(2)
    assert devices(x, y) == {"cuda"}
    assert values(y) == [[1.0, 1.0]] * 2


def test_a_mesh_stays_where_its_tensors_are(tensors: ProcMesh) -> None:
    with tensors.activate():
        x = torch.ones(2)
        with pytest.raises(ValueError, match="tensors has tensors on 'cpu'"):
            x.cuda()
        with pytest.raises(ValueError, match="tensors has tensors on 'cpu'"):
            torch.ones(2, device="cuda")
    refused = pytest.raises(ValueError, match="tensors has tensors on 'cpu'")
    with refused, tensors.activate(device="cuda"):
        pass
    assert values(x) == [[1.0, 1.0]] * 2


def test_tensors_on_gpus_stay_there(tensors: ProcMesh) -> None:
    with tensors.activate(device="cuda"):
        x = torch.ones(2)
        layer = torch.nn.Linear(2, 2)
        assert layer.to("cuda").cuda() is layer
        for move in (x.cpu, lambda: x.to("cpu"), layer.cpu, lambda: layer.to("cpu")):
            with pytest.raises(ValueError, match="fetch_shard"):
                move()
        with pytest.raises(ValueError, match="a GPU of each rank's own"):
            torch.ones(2, device="cuda:1")
    assert values(x) == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("reduction", ["sum", "avg", "max", "stack"])
def test_ranks_reduce_tensors_on_gpus(tensors: ProcMesh, reduction: str) -> None:
    with tensors.activate(device="cuda"):
        x = torch.tensor([1.0, 2.0]) * (tensors.rank_tensor("gpus") + 1)
        combined = x.reduce("gpus", reduction=reduction)
    rows = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    wanted = {"sum": rows.sum(0), "avg": rows.mean(0), "max": rows.max(0).values, "stack": rows}
    assert values(combined) == [wanted[reduction].tolist()] * 2
    assert devices(combined) == {"cuda"}


def test_a_tensor_moves_from_a_gpu_to_that_of_another_rank(tensors: ProcMesh) -> None:
    with tensors.activate(device="cuda"):
        x = torch.ones(3) * (tensors.rank_tensor("gpus") + 1)
        moved = x.slice_mesh(gpus=1).to_mesh(tensors.slice(gpus=0))
    assert monarch.inspect(moved).tolist() == [2.0] * 3


def trained(steps: int, draw: Callable[[Any], Any]) -> list[Any]:
    """Train a small network with attention; the losses. `draw` gives values of a tensor."""
    torch.manual_seed(0)
    inputs = draw(torch.randn(4, 6, 8))
    net = torch.nn.ModuleDict(
        {"qkv": torch.nn.Linear(8, 24), "norm": torch.nn.LayerNorm(8), "out": torch.nn.Linear(8, 1)}
    )
    with torch.no_grad():
        for count, parameter in enumerate(net.parameters()):
            parameter.copy_(
                draw(torch.linspace(-0.5, 0.5, parameter.numel()) / (count + 1)).reshape(
                    parameter.shape
                )
            )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses: list[Any] = []
    for _ in range(steps):
        q, k, v = net["qkv"](inputs).chunk(3, dim=-1)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        found = net["out"](torch.nn.functional.gelu(net["norm"](mixed)))
        loss = ((found - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return losses


def test_a_model_trains_as_it_does_on_a_cpu(tensors: ProcMesh) -> None:
    drawn: list[Any] = []

    def draw(value: Any) -> Any:
        drawn.append(value)
        return value

    def sent(_: Any) -> Any:
        return monarch.to_mesh(drawn.pop(0), tensors)

    here = [loss.item() for loss in trained(5, draw)]
    with tensors.activate(device="cuda"):
        there = trained(5, sent)
        assert devices(*there) == {"cuda"}
        for rank in range(2):
            found = [monarch.inspect(loss, gpus=rank).item() for loss in there]
            assert found == pytest.approx(here, rel=1e-3)
    assert here[-1] < here[0]


def test_a_compiled_region_runs_on_gpus(tensors: ProcMesh) -> None:
    @monarch.compile
    def step(x: Any) -> Any:
        return (x @ x + torch.ones(2, 2)).relu().sum(0)

    with tensors.activate(device="cuda"):
        x = torch.eye(2)
        first, second = step(x), step(x * 2)
    assert values(first) == [[3.0, 3.0]] * 2
    assert values(second) == [[6.0, 6.0]] * 2
    assert devices(first, second) == {"cuda"}


def test_streams_run_side_by_side_and_wait_at_borrows(tensors: ProcMesh) -> None:
    comm = monarch.Stream("comm")
    streams = monarch.remote(lambda x: torch.cuda.current_stream().stream_id)
    with tensors.activate(device="cuda"):
        x = torch.ones(512, 512) * (tensors.rank_tensor("gpus") + 1)
        for _ in range(20):
            x = x @ (x / x.sum(0)) + 1  # the GPU is behind the program
        x = x * 0 + tensors.rank_tensor("gpus") + 1
        there, borrow = comm.borrow(x, mutable=True)
        there.reduce_("gpus")
        for _ in range(20):
            there.mul_(2).div_(2)
        own = set(streams.call(there).get().values())
        borrow.drop()
        total = x.sum()
        copy = x.to_mesh(tensors, stream=comm)
        x.zero_()
        assert own.isdisjoint(streams.call(x).get().values())
    assert values(total) == [3.0 * 512 * 512] * 2
    assert values(copy.amin()) == values(copy.amax()) == [3.0] * 2
    assert devices(copy) == {"cuda"}


def test_an_operation_that_fails_on_a_gpu_is_named_at_its_line(tensors: ProcMesh) -> None:
    with tensors.activate(device="cuda"):
        x = torch.ones(4)
        huge = x.expand(1 << 44, 4).clone()  # more memory than any GPU has
        with pytest.raises(monarch.RemoteException, match=r"out of memory|Tried to allocate"):
            monarch.inspect(huge)
        assert values(x + 1) == [[2.0] * 4] * 2


CLIENT = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import monarch, torch
from monarch.actor import shutdown_context, this_host
procs = this_host().spawn_procs({"gpus": 1}, env={"CUDA_VISIBLE_DEVICES": "0"})
try:
    with procs.activate():
        torch.ones(3, device="cuda")
except ValueError as error:
    print(error)
with procs.activate(device="cuda"):
    x = torch.ones(3, device="cuda", requires_grad=True)
    layer = torch.nn.Linear(3, 1, device="cuda").to("cuda").cuda()
    (layer(x).sum() * 0 + (x.cuda() * 2).sum()).backward()
print(torch.cuda.is_available(), x.device, monarch.inspect(x.grad).tolist())
shutdown_context().get()
"""


def test_a_client_without_a_gpu_drives_ranks_that_have_one(run_python: Callable[..., str]) -> None:
    refused, told = run_python(CLIENT).splitlines()[-2:]
    assert refused.endswith(
        "name the device when the mesh is activated: mesh.activate(device='cuda')"
    )
    assert told == "False cuda [2.0, 2.0, 2.0]"
