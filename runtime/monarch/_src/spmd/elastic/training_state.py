"""The state of a rank as another rank takes it: tensors are published, and the rest is sent.

Runs in: a rank, on the thread of the actor that has the state.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from monarch._src.rdma.weights.publish import StateDictHandle, StateDictSource, put_state_dict
from monarch._src.rdma.weights.pull import get_state_dict


class TensorPlace(msgspec.Struct, frozen=True):
    """Stands for a tensor in a state that is sent."""

    name: str


class StateOffer(msgspec.Struct, frozen=True):
    """The state of a rank at a step: `rest` without its tensors, which `handle` leads to."""

    step: int
    rest: Any
    handle: StateDictHandle | None


def offer_state(step: int, state: Any) -> tuple[StateOffer, StateDictSource | None]:
    """Publish a state. Other ranks can take it as long as the source exists.

    Raises:
        TypeError: the state has a tensor that cannot be published, such as a DTensor.
    """
    tensors: dict[str, Any] = {}
    rest = _without_tensors(state, "", tensors)
    source = put_state_dict(tensors, buffers=1) if tensors else None
    return StateOffer(step, rest, None if source is None else source.handle), source


def take_state(offer: StateOffer, timeout_s: float) -> Any:
    """A copy of the state that was offered. Its tensors are on the CPU.

    Raises:
        RDMAError: the rank that offers the state has ended, or the copy takes too long.
    """
    tensors: Mapping[str, Any] = {}
    if offer.handle is not None:
        tensors = get_state_dict(offer.handle, timeout=timeout_s).get()
    return _with_tensors(offer.rest, tensors)


def _without_tensors(value: Any, name: str, tensors: dict[str, Any]) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        # Numbered, since keys may contain dots.
        name = f"{len(tensors)}{name}"
        tensors[name] = value.detach()
        return TensorPlace(name)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {key: _without_tensors(each, f"{name}.{key}", tensors) for key, each in items}
    if type(value) in (list, tuple):
        found = [_without_tensors(each, f"{name}.{at}", tensors) for at, each in enumerate(value)]
        return found if type(value) is list else tuple(found)
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, TensorPlace):
        return tensors[value.name]
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {key: _with_tensors(each, tensors) for key, each in items}
    if type(value) in (list, tuple):
        found = [_with_tensors(each, tensors) for each in value]
        return found if type(value) is list else tuple(found)
    return value
