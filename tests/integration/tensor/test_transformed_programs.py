"""Code of torch that traces, compiles, transforms or serialises a function of mesh tensors.

Each such use has the values of one process, or raises one error with a remedy.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import monarch
from monarch.actor import MeshStoppedError, ProcMesh

pytestmark = [
    pytest.mark.slow,
    # Warnings that torch itself gives about its own deprecations and the cost of these operations.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
make_fx: Any = import_module("torch.fx.experimental.proxy_tensor").make_fx
while_loop: Any = import_module("torch._higher_order_ops").while_loop
checkpoint: Any = import_module("torch.utils.checkpoint").checkpoint
to_dlpack: Any = import_module("torch.utils.dlpack").to_dlpack


def f(x: Any) -> Any:
    return (x * 2).sin().sum(-1)


def total(x: Any) -> Any:
    return f(x).sum()


def data() -> Any:
    return torch.arange(6.0).reshape(2, 3) / 7


def linear() -> Any:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(data())
        model.bias.zero_()
    return model


def checkpointed(use_reentrant: bool) -> Any:
    x = data().requires_grad_()
    checkpoint(f, x, use_reentrant=use_reentrant).sum().backward()
    return x.grad


def called_with_doubled_weights() -> Any:
    model = linear()
    doubled = {name: one.detach() * 2 for name, one in model.named_parameters()}
    return torch.func.functional_call(model, doubled, (data(),))


def hooked() -> Any:
    x = data().requires_grad_()
    x.register_hook(lambda gradient: gradient * 2)
    total(x).backward()
    return x.grad


def in_bfloat16() -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return data() @ data().t()


def in_inference_mode() -> Any:
    with torch.inference_mode():
        return f(data())


SAME: dict[str, Callable[[], Any]] = {
    "torch.compile": lambda: torch.compile(f, backend="aot_eager")(data()),
    "torch.compile of a module": lambda: torch.compile(linear(), backend="eager")(data()),
    "torch.jit.script": lambda: torch.jit.script(linear())(data()),
    "torch.fx.symbolic_trace": lambda: torch.fx.symbolic_trace(linear())(data()),
    "torch.export": lambda: torch.export.export(linear(), (data(),)).module()(data() + 1),
    "vmap": lambda: torch.func.vmap(lambda row: row[0] * row.sum())(data()),
    "grad": lambda: torch.func.grad(total)(data()),
    "vjp": lambda: torch.func.vjp(f, data())[1](torch.ones(2))[0],
    "jvp": lambda: torch.func.jvp(f, (data(),), (data(),))[1],
    "jacrev": lambda: torch.func.jacrev(f)(data()),
    "jacfwd": lambda: torch.func.jacfwd(f)(data()),
    "hessian": lambda: torch.func.hessian(total)(data()),
    "gradients per sample": lambda: torch.func.vmap(torch.func.grad(total))(data()),
    "functional_call": called_with_doubled_weights,
    "functionalize": lambda: torch.func.functionalize(f)(data()),
    "jacobian": lambda: torch.autograd.functional.jacobian(f, data()),
    "checkpoint": lambda: checkpointed(False),
    "reentrant checkpoint": lambda: checkpointed(True),
    "hook": hooked,
    "autocast": in_bfloat16,
    "inference_mode": in_inference_mode,
    "copy": lambda: copy.copy(data()),
    "deepcopy": lambda: copy.deepcopy(linear())(data()),
}


@pytest.mark.parametrize("name", SAME)
def test_a_function_that_torch_transforms_has_the_values_of_one_process(
    pair: ProcMesh, name: str
) -> None:
    expected = SAME[name]().detach()
    with pair.activate():
        found = SAME[name]()
    assert type(found) is monarch.Tensor
    for rank in range(2):
        torch.testing.assert_close(monarch.inspect(found.detach(), gpus=rank), expected)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "torch.jit.trace": (lambda: torch.jit.trace(f, data()), r"record them with monarch\.compile"),
    "torch.jit.trace of a module": (
        lambda: torch.jit.trace(linear(), data()), r"record them with monarch\.compile",
    ),
    "make_fx": (lambda: make_fx(f)(data()), r"line \d+ of .* record them with monarch\.compile"),
    "DataLoader": (
        lambda: list(DataLoader(TensorDataset(data()), batch_size=2)),
        r"iterate over a DataLoader within .*no_mesh\.activate",
    ),
    "quantize": (
        lambda: torch.quantize_per_tensor(data(), 0.1, 0, torch.qint8), "makes a quantized tensor",
    ),
    "to_sparse": (lambda: data().to_sparse(), "makes a sparse tensor"),
    "pickle": (lambda: pickle.dumps(data()), r"fetch_shard\(tensor\)"),
    "torch.save": (lambda: torch.save(linear(), io.BytesIO()), r"fetch_shard\(tensor\)"),
    "numpy": (lambda: data().numpy(), r"numpy\(\) at line \d+ .*fetch_shard"),
    "tolist": (lambda: data().tolist(), r"tolist\(\) at line \d+ .*fetch_shard"),
    "data_ptr": (lambda: data().data_ptr(), r"data_ptr\(\) concerns memory"),
    "to_dlpack": (lambda: to_dlpack(data()), "data pointer"),  # torch's words
    "cond": (
        lambda: torch.cond(data().sum() > 0, f, f, (data(),)),
        r"cond calls .*torch\.where\(\.\.\.\)",
    ),


    "while_loop": (
        lambda: while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (data(),)),
        r"while_loop calls functions of this process.*monarch\.remote\(function\)",
    ),
    "as_subclass": (lambda: data().as_subclass(nn.Parameter), "has the class monarch.Tensor"),
    "format": (lambda: f"{data().sum():.2f}", r"format\(tensor.* at line \d+ .*fetch_shard"),
    "gradcheck": (
        lambda: torch.autograd.gradcheck(f, (data().double().requires_grad_(),)), "fetch_shard",
    ),
    "resize_": (lambda: data().resize_(3, 3), "changes the shape of a tensor in place"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_code_that_cannot_run_on_a_mesh_is_told_what_to_do(pair: ProcMesh, name: str) -> None:
    use, remedy = REFUSED[name]
    with pytest.raises((RuntimeError, TypeError, ValueError), match=remedy), pair.activate():
        use()
    with pair.activate():
        assert monarch.inspect(total(data()), gpus=1) == total(monarch.inspect(data()))


def test_a_function_is_compiled_and_traced_outside_of_the_block_of_a_mesh(pair: ProcMesh) -> None:
    with pair.activate():
        x = data()
    compiled = torch.compile(f, backend="aot_eager")
    traced = make_fx(f)(x)
    for value in (x, x + 1):
        expected = f(monarch.inspect(value))
        for function in (compiled, traced):
            torch.testing.assert_close(monarch.inspect(function(value), gpus=1), expected)


def test_a_data_loader_passes_tensors_of_a_mesh_while_none_is_active(
    pair: ProcMesh,
) -> None:
    with pair.activate():
        rows = data()
    (batch,) = next(iter(DataLoader(TensorDataset(rows), batch_size=2)))
    assert torch.equal(monarch.inspect(batch, gpus=1), monarch.inspect(rows))
    with pair.activate(), monarch.no_mesh.activate():
        (local,) = next(iter(DataLoader(TensorDataset(torch.ones(2)), batch_size=2)))
    assert type(local) is torch.Tensor


def test_a_tensor_of_a_stopped_mesh_says_so_in_its_text(faulty: ProcMesh) -> None:
    with faulty.activate():
        x = torch.ones(2)
    faulty.stop().get(timeout=60)
    assert repr(x) == "<monarch.Tensor [2] float32 on faulty {gpus: 3}, which was stopped>"
    with pytest.raises(MeshStoppedError):
        monarch.inspect(x)
