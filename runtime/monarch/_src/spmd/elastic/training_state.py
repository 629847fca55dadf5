"""The state of a rank as another rank takes it: tensors are published, and the rest is sent.

Runs in: a rank, on the thread of the actor that has the state.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from monarch._src.rdma.weights.publish import StateDictHandle, StateDictSource, put_state_dict
from monarch._src.rdma.weights.pull import get_state_dict


class TensorPlace(msgspec.Struct, frozen=True):
    """Stands for a tensor in a state that is sent; places of one tensor have one name."""

    name: str
    requires_grad: bool = False
    is_parameter: bool = False


@dataclass(frozen=True)
class StateOffer:
    """The state of a rank at a step: `rest` without its tensors, which `handle` leads to.

    The error of a `rest` that cannot be pickled names the part; in a struct it would not find it.
    """

    step: int
    rest: Any
    handle: StateDictHandle | None


def offer_state(step: int, state: Any) -> tuple[StateOffer, StateDictSource | None]:
    """Publish a state. Other ranks can take it as long as the source exists.

    Raises:
        TypeError: the state has a tensor that cannot be published, such as a DTensor.
    """
    tensors: dict[str, Any] = {}
    rest = _without_tensors(state, "", tensors, {})
    source = put_state_dict(tensors, buffers=1) if tensors else None
    return StateOffer(step, rest, None if source is None else source.handle), source


def take_state(offer: StateOffer, timeout_s: float) -> Any:
    """A copy of the state that was offered. Its tensors are on the CPU.

    Containers have the types that they had. A tensor that the state has in several places is one
    tensor again.

    Raises:
        RDMAError: the rank that offers the state has ended, or the copy takes too long.
    """
    tensors: Mapping[str, Any] = {}
    if offer.handle is not None:
        tensors = get_state_dict(offer.handle, timeout=timeout_s).get()
    return _with_tensors(offer.rest, tensors, {})


def _without_tensors(
    value: Any, name: str, tensors: dict[str, Any], places: dict[int, TensorPlace]
) -> Any:
    """The value with a place for each tensor, which enters `tensors`.

    `places` are those made so far, by the id of their tensor: `state` keeps these tensors alive.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        place = places.get(id(value))
        if place is None:
            # Numbered, since keys may contain dots.
            name = f"{len(tensors)}{name}"
            tensors[name] = value.detach()
            is_parameter = isinstance(value, torch.nn.Parameter)
            place = TensorPlace(name, value.requires_grad, is_parameter)
            places[id(value)] = place
        return place
    return _rebuilt(
        value, lambda key, each: _without_tensors(each, f"{name}.{key}", tensors, places)
    )


def _with_tensors(value: Any, tensors: Mapping[str, Any], made: dict[str, Any]) -> Any:
    """The value with its tensors. `made` are those that have their place already, by name."""
    if isinstance(value, TensorPlace):
        if value.name not in made:
            made[value.name] = _as_it_was(tensors[value.name], value)
        return made[value.name]
    return _rebuilt(value, lambda _key, each: _with_tensors(each, tensors, made))


def _as_it_was(tensor: Any, place: TensorPlace) -> Any:
    if place.is_parameter:
        return sys.modules["torch"].nn.Parameter(tensor, requires_grad=place.requires_grad)
    return tensor.requires_grad_() if place.requires_grad else tensor


def _rebuilt(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    """A container with its items changed, of the type that it had; itself if none has changed."""
    if isinstance(value, dict):
        given = cast("dict[Any, Any]", value)
        found = {key: change(key, each) for key, each in given.items()}
        if all(found[key] is each for key, each in given.items()):
            return given
        # A copy keeps the attributes: the factory of a defaultdict, torch's `_metadata`.
        changed = copy.copy(given)
        for key, each in found.items():
            changed[key] = each
        return changed
    if type(value) in (list, tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        listed = [change(at, each) for at, each in enumerate(items)]
        if all(new is old for new, old in zip(listed, items, strict=True)):
            return items
        return listed if type(value) is list else tuple(listed)
    return value
