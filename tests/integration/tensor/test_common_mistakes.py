"""Code that means a tensor of this process: it works, or one error says what to do, and where."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions

import monarch
from monarch.actor import ProcMesh
from monarch.config import configured

pytestmark = pytest.mark.slow
NUMBER = "item(), float() or an index"


def on_both(tensor: Any) -> list[Any]:
    """Its values by rank."""
    return [monarch.inspect(tensor, dict(at)).tolist() for at in tensor.mesh.extent.points()]


def branches(x: Any) -> None:
    if x[0] == x[1]:
        raise AssertionError


def asserts(x: Any) -> None:
    assert torch.equal(x, x)


NEED_VALUES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "numpy": (lambda x: x.numpy(), "numpy()"),
    "asarray": (np.asarray, "numpy()"),
    "array of a list": (lambda x: np.array([x, x]), "numpy()"),
    "sum with an array": (lambda x: x + np.ones(2), "numpy()"),
    "tolist": (lambda x: x.tolist(), "tolist()"),
    "item": (lambda x: x[0].item(), NUMBER),
    "float": (lambda x: float(x[0]), NUMBER),
    "index of a list": (lambda x: [1, 2, 3][x[0].long()], NUMBER),
    "if": (branches, "bool()"),
    "assert": (asserts, "torch.equal"),
    "in": (lambda x: x[0] in [x[1], x[1]], "bool()"),
    "sorted": (lambda x: sorted([x[0], x[1]]), "bool()"),
    "max": (max, "bool()"),
    "arange": (lambda x: torch.arange(x[0]), NUMBER),
    "slice": (lambda x: x[: x[0].long()], NUMBER),
    "classes": (lambda x: torch.nn.functional.one_hot(x.long()), NUMBER),
    # torch.compile switches the checks off in its process
    "distribution": (lambda x: distributions.Normal(x, x, validate_args=True), "bool()"),
}


@pytest.mark.parametrize("name", NEED_VALUES)
def test_code_that_needs_values_is_told_where_it_does_and_what_to_do(
    pair: ProcMesh, name: str
) -> None:
    function, called = NEED_VALUES[name]
    with pair.activate():
        x = torch.arange(1.0, 3.0)
        with pytest.raises(RuntimeError, match=r"needs the values of a tensor") as raised:
            function(x)
    text = str(raised.value)
    assert text.startswith(f"{called} at line ")
    assert f" of {__file__} (" in text
    for remedy in ("monarch.fetch_shard", "monarch.remote(function)", "tensor_item='fetch'"):
        assert remedy in text
    assert ("validate_args=False" in text) == (name == "distribution")
    assert on_both(x + 1) == [[2.0, 3.0]] * 2


LISTS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda x: torch.tensor([x[0], 2.0]),
    "as_tensor": lambda x: torch.as_tensor([x[0], x[1]]),
    "new_tensor": lambda x: x.new_tensor([x[0], 1.0]),
    "split by a tensor": lambda x: torch.tensor_split(x, torch.ones(1).long()),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_tensor_of_a_list_with_tensors_of_a_mesh_is_refused(pair: ProcMesh, name: str) -> None:
    refused = rf"at line \d+ of {re.escape(__file__)} \(.*\).* copies the values .* torch\.stack"
    with pytest.raises((TypeError, ValueError), match=refused), pair.activate():
        LISTS[name](torch.ones(2))
    with pair.activate():
        x = torch.ones(2)
        assert on_both(torch.stack([x[0], torch.full((), 2.0)])) == [[1.0, 2.0]] * 2


def test_memory_of_this_process_is_not_that_of_a_tensor_of_a_mesh(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(2)
    for name in ("pin_memory", "share_memory_"):
        with pytest.raises(RuntimeError, match=rf"{name}\(\) concerns memory .* leave it out"):
            getattr(x, name)()
    assert not x.is_pinned()
    assert not x.is_shared()


def test_lengths_on_the_cpu_are_refused_by_name(pair: ProcMesh) -> None:
    with pair.activate():
        lengths = torch.tensor([3, 2])
        with pytest.raises(RuntimeError, match=r"_pack_padded_sequence.*monarch\.remote"):
            torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1), lengths)


def test_a_module_is_saved_by_its_values_and_loaded_again(pair: ProcMesh) -> None:
    file = io.BytesIO()
    with pair.activate():
        model = torch.nn.Linear(2, 1)
        for save in (
            lambda: torch.save(model.state_dict(), io.BytesIO()),
            lambda: torch.save(model, io.BytesIO()),
            lambda: pickle.dumps(model.weight),
        ):
            with pytest.raises(TypeError, match=r"torch\.save\(monarch\.inspect\(module"):
                save()
        torch.save(monarch.inspect(model.state_dict()), file)
        before = on_both(model.weight.detach())
        with torch.no_grad():
            model.weight.zero_()
    file.seek(0)
    state = torch.load(file)
    with pair.activate():
        model.load_state_dict(monarch.to_mesh(state, pair))
    assert on_both(model.weight.detach()) == before


# --- copies ---------------------------------------------------------------------------------------


def test_a_shallow_copy_shares_memory_as_in_torch(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(2)
        weight = torch.nn.Parameter(torch.ones(2))
        other, second = copy.copy(x), copy.copy(weight)
        other.add_(1)
    assert on_both(x) == [[2.0, 2.0]] * 2
    assert other is not x
    assert isinstance(second, torch.nn.Parameter)
    assert second.requires_grad
    assert second.is_leaf


def test_a_deep_copy_has_memory_and_a_gradient_of_its_own(pair: ProcMesh) -> None:
    def run() -> list[Any]:
        weight = torch.arange(6.0).reshape(2, 3).requires_grad_()
        (weight.t()[1:] ** 2).sum().backward()
        weight.tag = ["told"]  # type: ignore[attr-defined]
        made = copy.deepcopy({"weight": weight, "again": weight})
        other = made["weight"]
        assert made["again"] is other
        assert other.tag == ["told"]  # type: ignore[attr-defined]
        assert other.tag is not weight.tag  # type: ignore[attr-defined]
        (other * 3).sum().backward()
        with torch.no_grad():
            other.mul_(10)
        return [weight.detach(), weight.grad, other.detach(), other.grad]

    expected = run()
    with pair.activate():
        made = run()
    assert [on_both(one)[1] for one in made] == [one.tolist() for one in expected]


def test_a_deep_copy_of_a_parameter_has_no_gradient_as_in_torch(pair: ProcMesh) -> None:
    def run() -> list[Any]:
        model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1))
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        model(torch.ones(3, 2)).sum().backward()
        other = copy.deepcopy(model)
        assert all(one.grad is None for one in other.parameters())
        assert all(isinstance(one, torch.nn.Parameter) for one in other.parameters())
        (other(torch.ones(3, 2)) * 2).sum().backward()
        return [one.grad for one in [*model.parameters(), *other.parameters()]]

    expected = run()
    with pair.activate():
        made = run()
    assert [on_both(one)[1] for one in made] == [one.tolist() for one in expected]


def test_deep_copies_share_memory_as_their_originals_do(pair: ProcMesh) -> None:
    def run() -> list[Any]:
        x = torch.arange(6.0).reshape(2, 3)
        made = copy.deepcopy([x, x[1], x.t(), x.view(torch.int32)[0, :1], x + 1])
        made[1].mul_(2)
        made[2][0, 0] = 9
        return [*made, x]

    expected = run()
    with pair.activate():
        made = run()
    for one, other in zip(made, expected, strict=True):
        assert one.stride() == other.stride()
        assert on_both(one)[1] == other.tolist()


def test_a_tensor_with_a_gradient_function_has_no_deep_copy(pair: ProcMesh) -> None:
    with pair.activate():
        loss = torch.ones(2, requires_grad=True) * 2
        with pytest.raises(RuntimeError, match=r"copy tensor\.detach\(\)"):
            copy.deepcopy(loss)
        assert on_both(copy.deepcopy(loss.detach())) == [[2.0, 2.0]] * 2


def test_a_tensor_is_a_sequence_of_its_rows_and_can_be_printed(
    pair: ProcMesh, capsys: pytest.CaptureFixture[str]
) -> None:
    with pair.activate():
        x = torch.arange(6.0).reshape(3, 2)
        assert len(x) == 3
        assert [on_both(row)[0] for row in x] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
        print(x)
        assert f"{x}" == "<monarch.Tensor [3, 2] float32 on pair {gpus: 2}>"
        assert {x: 1}[x] == 1
    assert "monarch.Tensor [3, 2]" in capsys.readouterr().out


# --- libraries of torch ---------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "ASGD": lambda parameters: torch.optim.ASGD(parameters, lr=0.1),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.1),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1),
    "Adam with a tensor": lambda parameters: torch.optim.Adam(
        parameters, lr=torch.full((), 0.1), foreach=False
    ),
}


def trained(make: Callable[[Any], Any]) -> Any:
    """The weights of a model after some steps."""
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, 3).view(1, 3))
        model.bias.zero_()
    optimizer = make(model.parameters())
    data = torch.linspace(0, 1, 12).reshape(4, 3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = ((model(data) - data.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return model.weight.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_reads_values_is_refused_or_reads_the_first_rank(
    pair: ProcMesh, name: str
) -> None:
    expected = trained(OPTIMIZERS[name])
    with pair.activate():
        with pytest.raises(RuntimeError, match=r"at line \d+ of .*\((optimizer|para|lam|\")"):
            trained(OPTIMIZERS[name])
        with configured(tensor_item="fetch"):
            made = trained(OPTIMIZERS[name])
    for rank in range(2):
        torch.testing.assert_close(monarch.inspect(made, gpus=rank), expected)


def test_a_distribution_works_without_a_check_of_its_arguments(pair: ProcMesh) -> None:
    def run() -> list[Any]:
        x = torch.arange(1.0, 4.0)
        normal = distributions.Normal(x, x, validate_args=False)
        other = distributions.Normal(x * 2, x, validate_args=False)
        chosen = distributions.Categorical(logits=x, validate_args=False)
        return [
            normal.log_prob(x + 1), distributions.kl_divergence(normal, other), chosen.entropy(),
            chosen.log_prob(torch.ones(1, dtype=torch.int64)),
        ]  # fmt: skip

    expected = run()
    with pair.activate():
        made = run()
        drawn = distributions.Normal(torch.zeros(2), torch.ones(2), validate_args=False).sample(
            (3,)
        )
    assert drawn.shape == (3, 2)
    for one, other in zip(monarch.inspect(made), expected, strict=True):
        torch.testing.assert_close(one, other)


# --- gradients and meshes -------------------------------------------------------------------------


def slope(x: Any) -> Any:
    """The gradient of a function whose formula makes tensors of its own."""
    x.requires_grad_()
    x.trace().backward()
    return x.grad


def test_a_gradient_is_computed_on_the_mesh_of_its_tensor(square: ProcMesh) -> None:
    part = square.slice(tp=1)
    expected = slope(torch.arange(9.0).reshape(3, 3)).tolist()
    with part.activate():
        first, second, third = (torch.arange(9.0).reshape(3, 3) for _ in range(3))
    with square.activate():  # another mesh is active
        assert on_both(slope(first)) == [expected] * 2
        other = torch.ones(1)
    assert on_both(slope(second)) == [expected] * 2  # none is active
    with monarch.no_mesh.activate():
        assert on_both(slope(third)) == [expected] * 2
        assert type(torch.ones(1)) is torch.Tensor
    assert len(on_both(other)) == 4
    assert type(torch.ones(1)) is torch.Tensor


def test_a_large_gradient_that_torch_begins_in_this_process_needs_an_active_mesh(
    pair: ProcMesh,
) -> None:
    with pair.activate():
        small, large = torch.eye(2, requires_grad=True), torch.eye(150, requires_grad=True)
    (found,) = torch.autograd.grad(small.trace(), small)
    assert on_both(found) == [[[1.0, 0.0], [0.0, 1.0]]] * 2
    with pytest.raises(ValueError, match=r"compute the gradient within .*\.mesh\.activate"):
        torch.autograd.grad(large.trace(), large)
    with pair.activate():
        (found,) = torch.autograd.grad(large.trace(), large)
    assert torch.equal(monarch.inspect(found), torch.eye(150))


def test_a_renamed_mesh_has_tensors_of_its_own_and_takes_those_of_the_mesh(
    square: ProcMesh,
) -> None:
    renamed = square.rename(dp="host", tp="gpu")
    split = square.flatten("rank")
    rank = square.rank_tensor("dp") * 2 + square.rank_tensor("tp")
    with renamed.activate():
        x: Any = torch.ones(1, dtype=torch.int64)
        assert monarch.get_active_mesh().sizes == {"host": 2, "gpu": 2}
    assert on_both(renamed.rank_tensor("gpu").reduce("gpu")) == [1] * 4
    with pytest.raises(KeyError, match="no dim 'tp'; it has host, gpu"):
        x.reduce("tp")
    with pytest.raises(ValueError, match=r"two meshes, square .*host.* and square .*dp.*to_mesh"):
        x + rank
    for mesh in (renamed, split, square):
        assert on_both(rank.to_mesh(mesh)) == [0, 1, 2, 3]
    assert on_both(x + rank.to_mesh(renamed)) == [[1], [2], [3], [4]]
    there = rank.to_mesh(split)
    there.add_(10)
    assert on_both(rank) == [0, 1, 2, 3]  # a copy
    assert on_both(there.reduce("rank", "max")) == [13] * 4
    swapped = square.rename(dp="tp", tp="dp")  # the dims fit, and so decide
    assert on_both(rank.to_mesh(swapped)) == [0, 2, 1, 3]
