"""Torch operations within `mesh.activate()`, on real ranks."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import monarch
from monarch.actor import ProcMesh
from monarch.config import configure, configured
from monarch.observe import live_actors
from tests.integration.tensor.conftest import TORCH

pytestmark = pytest.mark.slow


def values(tensor: Any) -> list[Any]:
    """Of each rank of a mesh with one dim, as lists."""
    ranks = range(tensor.mesh.size())
    (dim,) = tensor.mesh.sizes
    return [monarch.inspect(tensor, {dim: rank}).tolist() for rank in ranks]


def test_factories_and_operations_run_on_every_rank(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.arange(4.0).reshape(2, 2) @ torch.ones(2, 1) + 1
        rank = pair.rank_tensor("gpus")
    assert type(x) is monarch.Tensor
    assert values(x) == [[[2.0], [6.0]]] * 2
    assert values(x[0] * rank) == [[0.0], [2.0]]
    assert repr(x) == "<monarch.Tensor [2, 1] float32 on pair {gpus: 2}>"


def test_the_rank_tensors_tell_where_a_rank_is(square: ProcMesh) -> None:
    found = square.rank_tensors()
    here = monarch.inspect(found, dp=1, tp=0)
    assert (int(here["dp"]), int(here["tp"])) == (1, 0)


def test_a_shape_error_is_raised_at_its_line_and_nothing_has_run(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(2, 3)
        with pytest.raises(RuntimeError, match="must have same reduction dim"):
            x @ x
        assert values(x.sum()) == [6.0, 6.0]


def test_views_share_memory_on_the_ranks(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.zeros(2, 3)
        row, column = x[0], x.t()[2]
        row.add_(1)
        column.mul_(5)
        x.view(-1)[4:].fill_(7)
    assert values(x) == [[[1.0, 1.0, 5.0], [0.0, 7.0, 7.0]]] * 2
    assert values(column) == [[5.0, 7.0]] * 2


def test_a_module_is_trained_as_in_one_process(pair: ProcMesh) -> None:
    def train() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        with torch.no_grad():
            for place, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
                parameter.add_(place / 10)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        data = torch.linspace(0, 1, 15).reshape(5, 3)
        for _ in range(4):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), data.sum(1, keepdim=True))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    expected = train()
    with pair.activate():
        made = train()
    for rank in range(2):
        for one, other in zip(monarch.inspect(made, gpus=rank), expected, strict=True):
            torch.testing.assert_close(one, other)


def test_a_copy_of_a_module_has_memory_of_its_own(pair: ProcMesh) -> None:
    with pair.activate():
        model = torch.nn.Linear(2, 2)
        other = copy.deepcopy(model)
        before = monarch.inspect(model.weight.detach())
        with torch.no_grad():
            other.weight.zero_()
    assert isinstance(other.weight, torch.nn.Parameter)
    assert torch.equal(monarch.inspect(model.weight.detach()), before)


def test_all_ranks_begin_with_the_same_seed_and_can_be_seeded_apart(pair: ProcMesh) -> None:
    def seed(rank: Any) -> None:
        torch.manual_seed(int(rank))

    with pair.activate():
        monarch.remote(torch.manual_seed).broadcast(5)
        same = torch.rand(3)
        monarch.remote(seed).broadcast(pair.rank_tensor("gpus"))
        apart = torch.rand(3)
        monarch.remote(seed).broadcast(pair.rank_tensor("gpus"))
        again = torch.rand(3)
    assert values(same)[0] == values(same)[1]
    assert values(apart)[0] != values(apart)[1]
    assert values(again) == values(apart)


def test_what_needs_values_says_how_to_get_them(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(2)
        for use in (
            lambda: bool(x.sum()), lambda: x.sum().item(), x.tolist, x.numpy,
            lambda: float(x.sum()), lambda: f"{x.sum():.2f}", lambda: torch.equal(x, x),
            lambda: torch.allclose(x, x), lambda: 1.0 in x,
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match=r"monarch\.fetch_shard"):
                use()
        with pytest.raises(RuntimeError, match=r"shape of the result .* depends on values"):
            x[x > 0]
        with pytest.raises(RuntimeError, match=r"shape of the result .* depends on values"):
            x.repeat_interleave(torch.tensor([1, 2]))
        with pytest.raises(ValueError, match="makes a sparse tensor"):
            x.to_sparse()
        assert values(x) == [[1.0, 1.0]] * 2


def test_small_local_tensors_are_sent_along_with_a_note(pair: ProcMesh) -> None:
    local = torch.tensor([1.0, 2.0])
    with pair.activate():
        x = torch.ones(2)
        with pytest.warns(UserWarning, match=r"local tensor of shape \[2\] was sent"):
            y = x + local
        z = x * torch.tensor(3.0)
        assert type(local * 2) is torch.Tensor  # local alone stays local
    assert values(y) == [[2.0, 3.0]] * 2
    assert values(z) == [[3.0, 3.0]] * 2


def test_a_large_local_tensor_is_refused_and_sent_on_request(pair: ProcMesh) -> None:
    large = torch.ones(1 << 15)
    with pair.activate():
        x = torch.ones(1)
        with pytest.raises(ValueError, match=r"131,072 bytes.*monarch.to_mesh"):
            x + large
        assert values((monarch.to_mesh(large, pair) + x).sum()) == [65536.0] * 2


def test_a_local_tensor_is_not_written_with_values_of_the_ranks(pair: ProcMesh) -> None:
    total = torch.zeros(2)
    with pair.activate():
        x = torch.ones(2)
        with pytest.raises(ValueError, match="a = a"):
            total += x
    assert total.tolist() == [0.0, 0.0]


def test_other_devices_generators_and_reshapes_in_place_are_refused(pair: ProcMesh) -> None:
    with pair.activate():
        with pytest.raises(ValueError, match="leave device out"):
            torch.ones(2, device="meta")
        with pytest.raises(ValueError, match="manual_seed"):
            torch.rand(2, generator=torch.Generator())
        x = torch.ones(2, 3)
        with pytest.raises(ValueError, match="without the underscore"):
            x.resize_(3)
        assert values(x) == [[[1.0] * 3] * 2] * 2


def test_without_a_mesh_torch_is_local(pair: ProcMesh) -> None:
    with pytest.raises(ValueError, match="no device mesh is active"):
        monarch.get_active_mesh()
    with pair.activate():
        assert monarch.get_active_mesh() == pair or monarch.get_active_mesh().name == "pair"
        with monarch.no_mesh.activate():
            assert type(torch.ones(2)) is torch.Tensor
            with pytest.raises(ValueError, match="no device mesh is active"):
                monarch.get_active_mesh()
            with pair.activate():
                assert type(torch.ones(2)) is monarch.Tensor
        assert type(torch.ones(2)) is monarch.Tensor
    assert type(torch.ones(2)) is torch.Tensor


def test_a_mesh_is_active_on_its_thread_only(pair: ProcMesh) -> None:
    made: list[Any] = []
    with pair.activate():
        thread = threading.Thread(target=lambda: made.append(torch.ones(1)))
        thread.start()
        thread.join()
    assert type(made[0]) is torch.Tensor


def test_memory_of_tensors_that_are_gone_is_freed_on_the_ranks(pair: ProcMesh) -> None:
    def held() -> int:
        # Plain ones: libraries have parameters without a size yet, which refuse to tell it.
        found = [one for one in gc.get_objects() if type(one) is torch.Tensor]
        return sum(one.numel() == 12345 for one in found)

    count = monarch.remote(held)
    with pair.activate():
        kept: Any = torch.ones(12345)
        gone = kept + 1
        assert list(count.call().get().values()) == [2, 2]
        del gone
        assert list(count.call().get().values()) == [1, 1]
        kept.drop()
        assert list(count.call().get().values()) == [0, 0]
        assert kept.dropped
        with pytest.raises(ValueError, match="was dropped"):
            kept + 1
        with pytest.raises(ValueError, match="was dropped"):
            monarch.fetch_shard(kept)


def test_a_tensor_does_not_travel(pair: ProcMesh) -> None:
    import pickle

    with pair.activate():
        x = torch.ones(1)
    with pytest.raises(TypeError, match=r"monarch\.fetch_shard"):
        pickle.dumps(x)


def test_large_values_arrive_whole(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.arange(1 << 18, dtype=torch.float64).reshape(512, 512).t()
    found = monarch.inspect({"x": [x, 3]})
    assert found["x"][1] == 3
    assert torch.equal(found["x"][0], torch.arange(1 << 18, dtype=torch.float64).view(512, 512).t())


def test_values_of_every_rank_are_shown(pair: ProcMesh, capsys: Any) -> None:
    monarch.show(pair.rank_tensor("gpus") + 5)
    assert capsys.readouterr().out == "pair[gpus=0]:\ntensor(5)\npair[gpus=1]:\ntensor(6)\n"


def test_only_ranks_that_exist_are_asked(pair: ProcMesh) -> None:
    x = pair.rank_tensor("gpus")
    with pytest.raises(ValueError, match="no dim 'hosts'; it has gpus"):
        monarch.fetch_shard(x, hosts=0)
    with pytest.raises(ValueError, match="gpus=0 to 1"):
        monarch.fetch_shard(x, gpus=2)
    assert monarch.fetch_shard(5).get() == 5


def test_one_element_with_a_stride_travels(pair: ProcMesh) -> None:
    local = torch.arange(3.0)[1::2]
    assert local.stride() == (2,)
    with pair.activate():
        element: Any = torch.arange(3.0)[1::2]
        found = [element, element.reduce("gpus", "stack"), monarch.to_mesh(local, pair)]
        found.append(element.slice_mesh(gpus=0).to_mesh(pair))
    assert [one.tolist() for one in monarch.inspect(found, gpus=1)] == [
        [1.0], [[1.0], [1.0]], [1.0], [1.0]
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="the ranks have GPUs")
def test_gpus_that_the_ranks_do_not_have_are_refused_and_the_mesh_is_usable(
    spawn_procs: Callable[..., ProcMesh],
) -> None:
    procs = spawn_procs({"gpus": 2}, name="plain", preload=TORCH)
    refused = r"plain\[gpus=0\] cannot keep tensors on a GPU: .*; 1 more ranks? cannot either"
    with pytest.raises(ValueError, match=refused), procs.activate(device="cuda"):
        pass
    with pytest.raises(ValueError, match=r"mesh\.activate"), procs.activate():
        torch.zeros(3, device="cuda")
    with procs.activate(device="cpu"):
        x = torch.ones(3, device="cpu")
        layer = torch.nn.Linear(3, 1)
    assert (x.device.type, x.is_cpu, x.is_cuda, x.get_device()) == ("cpu", True, False, -1)
    assert x.to("cpu") is x
    assert x.cpu() is x
    with pytest.raises(ValueError, match="plain has tensors on 'cpu'"):
        x.to("cuda", torch.float64)
    with pytest.raises(ValueError, match="plain has tensors on 'cpu'"):
        layer.to("cuda")
    with pytest.raises(ValueError, match="plain has tensors on 'cpu'"), procs.activate("cuda"):
        pass
    moved = [x.to("cpu", torch.float64), x.to(torch.float64, True), x.to(x.double(), copy=True)]
    assert [one.dtype for one in moved] == [torch.float64] * 3
    assert x.to("cpu", None, True) is x.to(dtype=torch.float32) is x.to(x) is x
    copied = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    assert copied is not x
    assert monarch.inspect(copied).tolist() == [1.0] * 3
    assert layer.to("cpu", torch.float64).weight.dtype == torch.float64


@pytest.fixture
def fetching() -> Iterator[None]:
    with configured(tensor_item="fetch"):
        yield


NEEDS = {
    "item": lambda x: x[1].item(),
    "float": lambda x: float(x[1]),
    "int": lambda x: int(x[1]),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy().tolist(),
    "bool": lambda x: bool(x[1] > 1),
    "format": lambda x: f"{x[1]:.1f}",
    "equal": lambda x: torch.equal(x, x * 1),
    "is_nonzero": lambda x: x[0].is_nonzero(),
    "dlpack": lambda x: np.from_dlpack(x).tolist(),
}  # fmt: skip
READ = {
    "item": 2.0, "float": 2.0, "int": 2, "tolist": [1.0, 2.0], "numpy": [1.0, 2.0], "bool": True,
    "format": "2.0", "equal": True, "is_nonzero": True, "dlpack": [1.0, 2.0],
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS)
def test_code_that_needs_values_is_refused_or_reads_the_first_rank(
    pair: ProcMesh, name: str
) -> None:
    with pair.activate():
        x = torch.arange(1.0, 3.0) + 10 * pair.rank_tensor("gpus")
        with pytest.raises(RuntimeError, match=r"needs the values.*tensor_item='fetch'"):
            NEEDS[name](x)
        with configured(tensor_item="fetch"):
            assert NEEDS[name](x) == READ[name]
    assert NEEDS["item"](torch.ones(2)) == 1.0


@pytest.mark.usefixtures("fetching")
def test_a_training_loop_of_plain_torch_reads_its_loss(pair: ProcMesh) -> None:
    with pair.activate():
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(16, 3)
        losses: list[float] = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = (model(inputs) ** 2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


@pytest.mark.usefixtures("fetching")
def test_a_compiled_function_refuses_to_read_values(pair: ProcMesh) -> None:
    @monarch.compile
    def step(x: Any) -> Any:
        return x * float(x[0])

    with pair.activate():
        x = torch.ones(2)
        with pytest.raises(RuntimeError, match="compiled function"):
            step(x)


def test_another_word_for_reading_values_is_refused() -> None:
    with pytest.raises(TypeError, match="give 'error' or 'fetch'"):
        configure(tensor_item="warn")


def test_the_explorer_reads_the_memory_of_each_rank(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.zeros(512, 512, dtype=torch.int16)  # no other test has these
        y = x.t()
        monarch.inspect(y, gpus=1)
    (worker,) = [one for one in live_actors(pair.slice(gpus=1)) if one.name == "tensors"]
    texts = dict(worker.attributes)
    assert texts["int16 on cpu"] == "2, 512.0 KiB"
    assert int(texts["tensors"].split(",")[0]) >= 2


def test_a_result_is_written_into_a_tensor_of_its_shape(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.arange(6.0).reshape(2, 3)
        found, place = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
        whole = torch.zeros(4, 3, dtype=torch.float64)
        torch.max(x, 1, out=(found, place))
        torch.mul(x, 2, out=whole[1:3])
        with pytest.raises(ValueError, match="with the shape of the result"):
            torch.add(x, 1, out=torch.empty(0))
    assert values(found) == [[2.0, 5.0]] * 2
    assert values(place) == [[2, 2]] * 2
    assert values(whole)[1] == [[0.0] * 3, [0.0, 2.0, 4.0], [6.0, 8.0, 10.0], [0.0] * 3]


def test_a_number_as_a_tensor_stays_local_and_says_how_to_make_it_on_the_ranks(
    pair: ProcMesh,
) -> None:
    with pair.activate():
        step, x = torch.tensor(0.5), torch.ones(2)
        with pytest.raises(ValueError, match=r"torch\.full\(\(\), number\)"):
            step += x.sum()
        with pytest.raises(ValueError, match=r"a = a \+ b"):
            torch._foreach_add_([torch.zeros(2, device="cpu")[:], monarch.inspect(x)], [x, x])  # pyright: ignore[reportPrivateImportUsage]
        scale = torch.full((), 0.5, requires_grad=True)
        optimizer = torch.optim.SGD([scale], 0.1)
        (x * scale).sum().backward()
        optimizer.step()
    assert values(scale.detach())[1] == pytest.approx(0.3)
