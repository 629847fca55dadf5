"""The strides of results: those that the client has for them. Runs in: a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from monarch._src.tensor.state.instructions import Layout
from monarch._src.tensor.torch_modules import TorchTensor, bits_of, pytree, torch, with_bits


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
