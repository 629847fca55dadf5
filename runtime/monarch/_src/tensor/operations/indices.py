"""Indices with numbers that only the ranks have, as `x[i]` with a 0-dim tensor `i`.

Torch reads such a number and selects there, which gives a view. Here the ranks read it, so each may
select another place, and the result is a view there. The client has its shape and strides, and an
offset without a meaning: its meta is UNPLACED.

Runs in: the client, on the thread that runs the operation.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias, cast

from monarch._src.tensor.channels.channel import Channel, two_channels
from monarch._src.tensor.operations.kinds import own_kind
from monarch._src.tensor.operations.result_metas import unplaced
from monarch._src.tensor.regions.recording import active
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.metas import Handle
from monarch._src.tensor.tensor import Tensor
from monarch._src.tensor.tensor_errors import unusable
from monarch._src.tensor.torch_modules import TorchTensor, torch

_MASKS = ("torch.bool", "torch.uint8", "bool", "uint8")  # dtypes, also those of numpy
_WHOLE = (...,)
_Function: Any = torch.autograd.Function
_Steps: TypeAlias = "list[tuple[int, Any]]"
"""Axes and places to select along them, one after the other. None: an axis of size 1 goes there."""


def has_number(index: Any) -> bool:
    """Whether an index has a number, or a truth value, that is on the ranks."""
    if type(index) is tuple:
        items = cast("tuple[Any, ...]", index)
        return any(type(one) is Tensor and _is_number(one) for one in items)
    return type(index) is Tensor and _is_number(index)


def _is_number(one: Any) -> bool:
    return not (one.dim() or one.dtype.is_floating_point or one.dtype.is_complex)


def _is_mask(one: Any) -> bool:
    return str(getattr(one, "dtype", "")) in _MASKS


def part(tensor: Tensor, index: Any) -> Any:
    """`tensor[index]`, where `index` has numbers on the ranks. A view of the tensor on each rank.

    With gradients the result cannot be written to, as torch refuses it for a view that a
    `torch.autograd.Function` returns.

    Raises:
        IndexError: too many indices. One that is out of range fails on its rank.
        RuntimeError: the index has a truth value, on which the shape depends.
    """
    steps, rest = _taken_apart(tensor, index)
    for axis, place in steps:
        tensor = tensor.unsqueeze(axis) if place is None else _selected(tensor, axis, place)
    return TorchTensor.__getitem__(tensor, rest) if rest else tensor


def write(tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`. Raises as `part`."""
    with_gradient = isinstance(value, TorchTensor) and value.requires_grad
    if with_gradient and type(index) is Tensor and index.dtype is torch.bool:
        width = tensor.dim() - index.dim()
        if width >= 0 and all(size == 1 for size in value.shape[: max(0, value.dim() - width)]):
            # The gradient of torch's own operation has a shape that depends on the mask.
            mask = index.reshape((*index.shape, *[1] * width))
            tensor.copy_(torch.where(mask, value, tensor))
            return
    if not has_number(index):
        TorchTensor.__setitem__(tensor, index, value)
        return
    steps, rest = _taken_apart(tensor, index)
    if torch.is_grad_enabled() and (tensor.requires_grad or with_gradient):
        _put(tensor, steps, rest or _WHOLE, value)
        return
    for axis, place in steps:
        tensor = tensor.unsqueeze(axis) if place is None else _selected(tensor, axis, place)
    TorchTensor.__setitem__(tensor, rest or _WHOLE, value)


def _put(tensor: Tensor, steps: _Steps, rest: tuple[Any, ...], value: Any) -> None:
    """Write through operations that autograd records: copy a part, write to it, and put it back."""
    if not steps:
        write(tensor, rest[0] if len(rest) == 1 else rest, value)
        return
    (axis, place), *others = steps
    if place is None:
        _put(tensor.unsqueeze(axis), others, rest, value)
        return
    copy = _selected(tensor, axis, place).clone()
    _put(copy, others, rest, value)
    tensor.index_put_([None] * axis + [place], copy)


def _taken_apart(tensor: Tensor, index: Any) -> tuple[_Steps, tuple[Any, ...]]:
    """Split an index with numbers that only ranks have.

    Returns the selections by those numbers, and the index of their result. A selection removes its
    axis, so axes behind it move up. A truth value is a mask of an axis of size 1.
    """
    items = cast("tuple[Any, ...]", index) if type(index) is tuple else (index,)
    dims, axis = tensor.dim(), 0
    steps: _Steps = []
    rest: list[Any] = []
    for at, item in enumerate(items):
        if item is Ellipsis:
            axis = max(axis, dims - sum(map(_axes_of, items[at + 1 :])))
        elif type(item) is not Tensor or not _is_number(item):
            axis += _axes_of(item)
        elif _is_mask(item):
            steps.append((axis, None))
            dims, axis = dims + 1, axis + 1
            item = item.unsqueeze(0)
        else:
            steps.append((axis, item))
            dims -= 1
            continue
        rest.append(item)
    return steps, tuple(rest)


def _axes_of(item: Any) -> int:
    """How many axes a part of an index is about."""
    if item is None or isinstance(item, bool):
        return 0
    if _is_mask(item):
        return int(item.ndim)
    depth, leaf = 0, item
    while isinstance(leaf, (list, tuple)) and leaf:
        depth, leaf = depth + 1, cast("list[Any]", leaf)[0]
    return depth if depth and isinstance(leaf, bool) else 1


def _selected(tensor: Tensor, axis: int, place: Tensor) -> Any:
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Select.apply(tensor, axis, place)
    return _view(tensor, axis, place)


class _Select(_Function):
    """The selection of a place that the ranks know, with its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, axis: int, place: Any) -> Any:
        ctx.axis, ctx.shape = axis, tensor.shape
        ctx.save_for_backward(place)
        return _view(tensor, axis, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (place,), (gradient,) = ctx.saved_tensors, gradients
        zeros = gradient.new_zeros(ctx.shape)
        whole = torch.ops.aten.index_put(zeros, [None] * ctx.axis + [place], gradient)
        return whole, None, None


def _view(tensor: Tensor, axis: int, place: Tensor) -> Tensor:
    handles = [tensor.monarch_handle, place.monarch_handle]
    channel = cast(Channel, handles[0].channel)
    if handles[1].channel is not channel:
        raise two_channels(channel, cast(Channel, handles[1].channel))
    watch = active()
    for one, handle in zip((tensor, place), handles, strict=True):
        if handle.storage.unusable:
            raise unusable(handle)
        if watch is not None:
            watch.note(one)
    # Torch makes the view of the first place, so that writes to either count for both, and refuses
    # gradients that would pass through it.
    with torch.no_grad():
        made = tensor.select(axis, 0)
    site = sites.number(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    numbers = (handles[0].number, handles[1].number)
    number = channel.record(own_kind("monarch::select", axis), numbers, (), site)
    base = handles[0].base or handles[0]
    meta = unplaced(made.monarch_handle.meta)
    made.monarch_handle = Handle(number, meta, handles[0].storage, channel, None, base)
    return made
