"""The state of a training, as one rank offers it and another takes it."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from monarch._src.spmd.elastic.training_state import offer_state, take_state
from monarch.actor import Actor, ProcMesh, endpoint
from tests.integration.spmd.conftest import Trainers, on

pytestmark = pytest.mark.slow


class Giver(Actor):
    """Offers a state to itself: both halves run in a rank, and the copy is another object."""

    @endpoint
    def types_of_containers(self) -> list[str]:
        """The types of containers, with tensors in them and without."""
        import torch

        tensor = torch.arange(3.0)
        state = {
            "default": collections.defaultdict(list, {"a": [tensor]}),
            "counter": collections.Counter("aab"),
            "ordered": collections.OrderedDict(a=tensor),
            "tuple": (tensor, [tensor]),
            "empty": {},
        }
        found = self._copy(state)
        assert found["default"]["b"] == []  # it has its factory
        assert found["counter"]["z"] == 0
        assert torch.equal(found["default"]["a"][0], tensor)
        assert found["ordered"]["a"] is not tensor
        return [type(found[key]).__name__ for key in state]

    @endpoint
    def state_of_a_module(self) -> tuple[bool, bool]:
        """Whether the versions of torch's modules come with it, and whether the state is equal."""
        import torch

        state: Any = torch.nn.BatchNorm1d(3).state_dict()
        found = self._copy(state)
        same = all(torch.equal(found[key], state[key]) for key in state)
        return found._metadata == state._metadata, same

    @endpoint
    def kinds_of_tensors(self) -> dict[str, bool]:
        """The properties of tensors that are no modules'."""
        import torch

        weights = torch.zeros(2, requires_grad=True)
        state = {
            "weights": weights,
            "optimized": [weights],
            "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
            "count": torch.tensor(3),
        }
        found = self._copy(state)
        return {
            "is_one": found["optimized"][0] is found["weights"],
            "requires_grad": found["weights"].requires_grad,
            "is_parameter": type(found["parameter"]) is torch.nn.Parameter,
            "is_frozen": not found["parameter"].requires_grad,
            "is_plain": not found["count"].requires_grad,
        }

    def _copy(self, state: Any) -> Any:
        offer, source = offer_state(4, state)
        found = take_state(offer, 60)
        assert source is not None
        return found


@pytest.fixture
def giver(trainers: Trainers) -> Any:
    procs: ProcMesh = trainers(gpus=1)
    return on(procs, Giver).slice(gpus=0)


def test_containers_keep_their_types(giver: Any) -> None:
    found = giver.types_of_containers.call_one().get(timeout=60)
    assert found == ["defaultdict", "Counter", "OrderedDict", "tuple", "dict"]


def test_versions_of_modules_come_with_their_state(giver: Any) -> None:
    assert giver.state_of_a_module.call_one().get(timeout=60) == (True, True)


def test_a_tensor_in_two_places_is_one_and_trains_as_before(giver: Any) -> None:
    found = giver.kinds_of_tensors.call_one().get(timeout=60)
    assert [name for name, holds in found.items() if not holds] == []
