"""Programs of torch give on every rank of a mesh what they give in one process."""

from __future__ import annotations

from collections.abc import Callable
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
