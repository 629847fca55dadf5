"""Rows of torch tensors and parameters. No I/O.

torch is not imported here: with a value of it, it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from monarch._src.mesh.namespace.kinds import (
    Kind,
    Trait,
    attributes_of,
    attributes_problem,
    class_of,
    slice_of,
    type_of,
)


def _torch() -> Any:
    return sys.modules["torch"]


def _traits(value: Any) -> Iterator[Trait]:
    yield type_of(value)
    yield Trait("dtype", value.dtype)
    yield Trait("device", value.device)
    yield Trait("requires_grad", value.requires_grad)
    yield Trait("row shape", tuple(value.shape[1:]))


def _problem(value: Any) -> str | None:
    if value.is_nested:
        return "is a nested tensor, whose rows differ: give its unbind() as a list"
    if value.layout is not _torch().strided:
        return "is sparse, and torch has no slices of it: give its to_dense()"
    if value.is_quantized:
        return "is quantized, and torch rounds again to join it: give its int_repr()"
    if _has_rule(class_of(value)):
        return None
    return attributes_problem(value, attributes_of(value), "torch.cat", "a __torch_function__")


def _has_rule(kind: type[Any]) -> bool:
    """Whether a class says itself how its tensors are joined."""
    own, inherited = kind.__torch_function__, _torch().Tensor.__torch_function__
    return getattr(own, "__func__", None) not in (None, inherited.__func__)


def _joined(values: Sequence[Any]) -> Any:
    # A leaf, as its parts are: a pulled tensor has no history.
    with _torch().no_grad():
        joined = _torch().cat(list(values))
    return joined.requires_grad_(values[0].requires_grad)


# --- parameters: torch makes a slice or a join of them a plain tensor -----------------------------


def _part_of_parameter(value: Any, start: int, stop: int) -> Any:
    return class_of(value)(value.detach()[start:stop], requires_grad=value.requires_grad)


def _joined_parameter(values: Sequence[Any]) -> Any:
    first = values[0]
    joined = _torch().cat([value.detach() for value in values])
    return class_of(first)(joined, requires_grad=first.requires_grad)


def _problem_of_parameter(value: Any) -> str | None:
    if type(value) is not _torch().nn.Parameter:
        return "is of a subclass of Parameter, which torch makes a plain tensor: give its data"
    return _problem(value)


TENSOR = Kind(slice_of, _joined, _traits, _problem)
PARAMETER = Kind(_part_of_parameter, _joined_parameter, _traits, _problem_of_parameter)
