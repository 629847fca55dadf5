"""A kind of instruction as a function of its inputs and scalars, and the strides of its results.

The strides are those that the client has for them. Runs in: a rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from monarch._src.tensor.operations.operation import overload_of
from monarch._src.tensor.state.instructions import Kind, Layout, Slot, Value
from monarch._src.tensor.torch_modules import TorchTensor, bits_of, pytree, torch, with_bits

_default_dtype = threading.Lock()
"""Held while an operation depends on torch's default dtype, which all streams of a rank share."""

Call: TypeAlias = "Callable[[list[Any], tuple[Any, ...]], Any]"

# Their results hold what backward needs only where gradients are on, as they are in the client.
_KEEP_FOR_BACKWARD = ("aten::mkldnn_rnn_layer.default",)


def leaves_of(result: Any) -> list[Any]:
    """The results of an operation in order. A None among them is a leaf too, as in the client."""
    if type(result) is list:
        return cast("list[Any]", result)
    found: list[Any] = pytree.tree_leaves(result)
    return found


def laid_out(result: Any, layouts: Sequence[tuple[int, Layout]]) -> Any:
    """A result with copies in place of the tensors that lie in memory in another way.

    `layouts`: of results that share memory with no other tensor, by their places. Without such a
    tensor, `result` itself.
    """
    leaves = leaves_of(result)
    copies = {
        place: _copy(leaves[place], layout)
        for place, layout in layouts
        if not _fits(leaves[place], layout)
    }
    if not copies:
        return result
    if isinstance(result, TorchTensor):
        return copies[0]
    return [copies.get(place, one) for place, one in enumerate(leaves)]


def _fits(tensor: Any, layout: Layout) -> bool:
    if not isinstance(tensor, TorchTensor):
        return True
    shape, strides, offset, bits = layout
    if tuple(tensor.shape) != shape or 0 in shape:
        return True  # a result that the program cannot use, such as statistics without training
    if tensor.storage_offset() != offset or bits_of(tensor) != bits:
        return False
    # The stride of an axis of one element means nothing.
    pairs = zip(tensor.stride(), strides, shape, strict=True)
    return all(own == other for own, other, size in pairs if size > 1)


def _copy(tensor: Any, layout: Layout) -> Any:
    span = 1 + sum(
        (size - 1) * step for size, step in zip(layout.shape, layout.strides, strict=True)
    )
    whole = torch.empty(layout.offset + span, dtype=tensor.dtype, device=tensor.device)
    made = whole.as_strided(layout.shape, layout.strides, layout.offset)
    return with_bits(made, layout.bits).copy_(tensor)


def call_of(kind: Kind, device: Any = None) -> Call:
    """The function that runs instructions of a torch operation.

    Args:
        kind: the operation.
        device: takes the place of the device that the operation names. None: the CPU.

    Raises:
        AttributeError: the torch of this rank has no such operation.
    """
    if kind.default_dtype is not None:
        return _with_default_dtype(call_of(replace(kind, default_dtype=None), device), kind)
    func = overload_of(kind.operation)
    schema = func._schema
    if kind.operation in _KEEP_FOR_BACKWARD:
        func = torch.enable_grad()(func)
    args, kwargs = kind.args, dict(kind.kwargs)
    if device is not None and any(one.name == "device" for one in schema.arguments):
        kwargs["device"] = device
    if kwargs or any(type(one) is list for one in args):
        return lambda inputs, scalars: func(
            *filled(args, inputs, scalars),
            **{name: _filled_one(one, inputs, scalars) for name, one in kwargs.items()},
        )
    if args == (Slot(0),):
        return lambda inputs, _: func(inputs[0])
    if args == (Slot(0), Slot(1)):
        return lambda inputs, _: func(inputs[0], inputs[1])
    slots = [(place, one.place) for place, one in enumerate(args) if type(one) is Slot]
    values = [(place, one.place) for place, one in enumerate(args) if type(one) is Value]

    def call(inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        filled = list(args)
        for place, index in slots:
            filled[place] = inputs[index]
        for place, index in values:
            filled[place] = scalars[index]
        return func(*filled)

    return call


def _with_default_dtype(call: Call, kind: Kind) -> Call:
    """The function, run with the default dtype of the client where this rank has another."""
    dtype = kind.default_dtype

    def run(inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        with _default_dtype:
            own = torch.get_default_dtype()
            if own is dtype:
                return call(inputs, scalars)
            torch.set_default_dtype(dtype)
            try:
                return call(inputs, scalars)
            finally:
                torch.set_default_dtype(own)

    return run


def filled(template: Sequence[Any], inputs: list[Any], scalars: tuple[Any, ...]) -> list[Any]:
    """Arguments of a kind, with the inputs and scalars of an instruction in their places."""
    return [_filled_one(one, inputs, scalars) for one in template]


def _filled_one(one: Any, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
    kind = type(one)  # pyright: ignore[reportUnknownVariableType]
    if kind is Slot:
        return inputs[one.place]
    if kind is Value:
        return scalars[one.place]
    return filled(one, inputs, scalars) if kind is list else one
