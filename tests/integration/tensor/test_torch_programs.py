"""A torch program gives on every rank of a mesh the values that it gives in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import monarch
from monarch.actor import ProcMesh
from tests.integration.tensor.test_random_programs import same

pytestmark = pytest.mark.slow


def ramp(*shape: int) -> Any:
    """Numbers from -1 on, on a mesh or in this process."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) / 7 - 1


def check(mesh: ProcMesh, program: Callable[[], Any]) -> None:
    """Run a program in this process and on a mesh, and compare all tensors that it returns."""
    expected = [plain(one) for one in program()]
    with mesh.activate():
        made = [one.detach() for one in program()]
    assert {type(one) for one in made} == {monarch.Tensor}
    for rank in range(2):
        same(monarch.inspect(made, gpus=rank), expected)


def plain(tensor: Any) -> Any:
    """A tensor of this process, as the fetch of one from a mesh gives it."""
    return tensor.detach().resolve_conj().resolve_neg()


# --- memory of another tensor ---------------------------------------------------------------------


def replaced_data() -> list[Any]:
    x = ramp(3)
    view = x[1:]
    x.data = x.data * 2 + ramp(2, 3)
    x.add_(1)
    view.zero_()
    return [x, view]


def stepped_by_data() -> list[Any]:
    weight: Any = nn.Parameter(ramp(3))
    (weight * ramp(3)).sum().backward()
    weight.data = weight.data - weight.grad.data
    weight.grad.data.zero_()
    (weight * 3).sum().backward()
    return [weight, weight.grad]


def parameters_from_a_vector() -> list[Any]:
    model = nn.Linear(2, 2)
    nn.utils.vector_to_parameters(ramp(6), model.parameters())
    return [model.weight, model.bias, model(ramp(1, 2))]


@pytest.mark.parametrize("program", [replaced_data, stepped_by_data, parameters_from_a_vector])
def test_an_assignment_to_data_gives_the_memory_of_the_other(
    pair: ProcMesh, program: Callable[[], Any]
) -> None:
    check(pair, program)


def test_data_of_this_process_is_sent_and_a_compiled_function_refuses_it(pair: ProcMesh) -> None:
    local = torch.ones(3)
    with pair.activate():
        x = torch.zeros(2)
        x.data = local
        assert monarch.inspect(x, gpus=1).tolist() == [1.0] * 3

        @monarch.compile
        def assign(y: Any) -> Any:
            x.data = y
            return y + 1

        with pytest.raises(RuntimeError, match=r"assignment to \.data .*copy_"):
            assign(torch.ones(2))


# --- views in place, and what torch's own code does with them -------------------------------------


def turned() -> list[Any]:
    x, y = ramp(2, 3), ramp(1, 4)
    row = x[0]
    x.t_()
    x[0].add_(1)
    y.squeeze_().unsqueeze_(1)
    z = ramp(2, 3, 1).transpose_(0, 1).squeeze_(2)
    return [x, row, x @ ramp(2, 2), y, y + ramp(3), z.view(torch.int32), z.contiguous().view(-1)]


def turned_with_gradient() -> list[Any]:
    x = ramp(2, 3).requires_grad_()
    y = x * 2
    y.t_()
    (y * ramp(3, 2)).sum().backward()
    return [y, x.grad]


def tensors_of(value: Any) -> list[Any]:
    """The tensors of nested tuples."""
    if isinstance(value, tuple):
        return [tensor for one in value for tensor in tensors_of(one)]  # pyright: ignore[reportUnknownVariableType]
    return [value]


def of_module(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Any]:
    """The outputs of a module, and its gradients."""

    def program() -> list[Any]:
        module = make()
        with torch.no_grad():
            for place, parameter in enumerate(module.parameters()):
                parameter.copy_((ramp(parameter.numel()) + place).sin().view_as(parameter))
        x = ramp(*shape).sin().requires_grad_()
        outputs = tensors_of(module(x))
        total: Any = sum((one**2).sum() for one in outputs)
        total.backward()
        return [*outputs, x.grad, *(parameter.grad for parameter in module.parameters())]

    return program


MODULES: dict[str, Callable[[], Any]] = {
    "lstm": of_module(lambda: nn.LSTM(8, 6, num_layers=2, batch_first=True), 2, 5, 8),
    "gru": of_module(lambda: nn.GRU(8, 6, batch_first=True, bidirectional=True), 2, 5, 8),
    "transformer": of_module(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, 5, 8
    ),
    "convolutions": of_module(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(16, 2),
        ),
        2, 3, 6, 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", [turned, turned_with_gradient])
def test_a_tensor_that_is_turned_in_place_keeps_its_memory(
    pair: ProcMesh, program: Callable[[], Any]
) -> None:
    check(pair, program)


def test_a_compiled_function_turns_its_own_tensors_only(pair: ProcMesh) -> None:
    @monarch.compile
    def step(x: Any) -> Any:
        return (x * 2).t_() + 1

    @monarch.compile
    def outside(x: Any) -> Any:
        return x.t_() + 1

    with pair.activate():
        x = ramp(2, 3)
        found = [step(x) for _ in range(3)]
        with pytest.raises(RuntimeError, match="from outside"):
            outside(x)
    assert x.shape == (2, 3)
    assert monarch.inspect(found)[2].tolist() == (ramp(2, 3) * 2).t().add(1).tolist()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_the_values_and_gradients_of_one_process(pair: ProcMesh, name: str) -> None:
    check(pair, MODULES[name])


# --- the default dtype ----------------------------------------------------------------------------


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made_by_default() -> list[Any]:
    whole = torch.arange(1, 4)
    return [
        torch.ones(2), torch.full((2,), 0.1), torch.linspace(0, 1, 4), torch.tensor([0.1, 0.2]),
        whole / 3, whole * 0.1, whole.sqrt(), torch.full((1,), 1j), whole.to(torch.float16) / 3,
    ]  # fmt: skip


@pytest.mark.usefixtures("float64_by_default")
def test_the_default_dtype_of_the_program_is_that_of_the_ranks(pair: ProcMesh) -> None:
    check(pair, made_by_default)
    torch.set_default_dtype(torch.float32)
    check(pair, made_by_default)


# --- numbers as arguments -------------------------------------------------------------------------


def zeros_with_a_sign() -> list[Any]:
    x = torch.full((2,), float("nan"))
    found = [x.nan_to_num(nan=zero) for zero in (0.0, -0.0, 0.0)]
    return [*found, *(one.reciprocal() for one in found)]


def test_a_zero_keeps_its_sign(pair: ProcMesh) -> None:
    check(pair, zeros_with_a_sign)


# --- complex numbers ------------------------------------------------------------------------------


def conjugates() -> list[Any]:
    x = torch.complex(ramp(3, 2), ramp(3, 2).flip(0))
    found = [
        x.conj(), x.conj().imag, x.mH @ x, x.conj() + 1, x.T.conj(), x.conj().clone(),
        x.real * x.imag, (x * x.conj()).real, torch.view_as_real(x), x.conj().abs(),
    ]  # fmt: skip
    return [plain_on_ranks(one) for one in found]


def plain_on_ranks(tensor: Any) -> Any:
    return tensor + 0 if tensor.is_neg() else tensor


def written_through_conjugates() -> list[Any]:
    x, y = (torch.complex(ramp(3, 2), ramp(3, 2).flip(0)) for _ in range(2))
    x.conj().mul_(2j)
    x.imag.add_(1)
    y.conj().imag.fill_(5)
    return [x, y, y.conj()]


def transformed() -> list[Any]:
    x = ramp(4, 6).requires_grad_()
    y = torch.fft.rfft(x, dim=0)
    (y * y.conj()).real.sum().backward()
    return [y, torch.fft.irfft(y, n=4, dim=0), torch.fft.fft2(x), x.grad]


@pytest.mark.parametrize("program", [conjugates, written_through_conjugates, transformed])
def test_complex_numbers_and_their_conjugates(pair: ProcMesh, program: Callable[[], Any]) -> None:
    check(pair, program)


def test_conjugates_travel(pair: ProcMesh) -> None:
    local = torch.complex(ramp(2), ramp(2) + 3).conj()
    with pair.activate():
        x: Any = torch.complex(ramp(2), ramp(2) + 3)
        found = [
            x.conj().reduce("gpus", "stack")[1], x.conj().slice_mesh(gpus=0).to_mesh(pair),
            monarch.to_mesh(local, pair), monarch.remote(lambda x: x.conj())(x),
        ]  # fmt: skip
    for rank in range(2):
        for one in monarch.inspect(found, gpus=rank):
            assert torch.equal(one, local.resolve_conj())


# --- where the elements of a result lie -----------------------------------------------------------


def results_with_strides_of_their_own() -> list[Any]:
    x, matrix = ramp(5, 6, 7), ramp(3, 3).sin()
    spectrum = torch.fft.rfftn(x)
    left, _, right = torch.linalg.svd(ramp(2, 3).sin())
    picture = ramp(2, 3, 6, 6).sin().to(memory_format=torch.channels_last)
    layer = nn.functional.conv2d(picture, ramp(4, 3, 3, 3).sin())
    found = [spectrum, torch.fft.irfftn(spectrum), left.abs(), right[:2].abs(), layer]
    found += [torch.linalg.eigvals(matrix).abs().sort()[0], torch.linalg.solve(matrix, ramp(3, 2))]
    again = [one.as_strided(one.shape, one.stride(), one.storage_offset()) for one in found]
    return [*found, *again, *(one.reshape(-1) for one in found), layer.flatten(1)]


def test_strides_on_the_ranks_are_those_of_which_views_are_made(pair: ProcMesh) -> None:
    with pair.activate():
        made = [plain(one) for one in results_with_strides_of_their_own()]
    expected = [plain(one) for one in results_with_strides_of_their_own()]
    half = len(expected) // 3
    for rank in range(2):
        found = monarch.inspect(made, gpus=rank)
        same(found[:half], expected[:half])
        same(found[half : 2 * half], expected[:half])
        same(found[2 * half : 3 * half], [one.reshape(-1) for one in expected[:half]])
        same(found[-1:], [expected[half - 1 - 2].flatten(1)])


def test_results_of_functions_lie_as_their_propagation_says(pair: ProcMesh) -> None:
    turned = monarch.remote(lambda x: x.t(), propagate=lambda x: torch.empty(3, 2))
    with pair.activate():
        found = turned(ramp(2, 3)).view(-1)
    assert monarch.inspect(found).tolist() == ramp(2, 3).t().reshape(-1).tolist()
