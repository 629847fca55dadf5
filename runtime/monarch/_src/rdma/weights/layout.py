"""The layout of a state dict: its tensors, with type, shape, part and offset of each.

No I/O, and plain data only: a layout travels in a handle, and allows all checks before a byte
moves. Nothing here knows torch or numpy; an element type is a name that both use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

import msgspec

ALIGNED = 64  # bytes: alignment of each tensor in its slot, a cache line
Kind = Literal["torch", "numpy"]
Shape = tuple[int, ...]


class TensorSlice(msgspec.Struct, frozen=True):
    """A rectangular part of a tensor: its offsets, its shape, and the shape of the whole.

    It describes the part that a process has, or the part that it wants.

    Raises:
        ValueError: the three differ in their number of dims, or the part exceeds the whole.
    """

    offsets: Shape
    local_shape: Shape
    global_shape: Shape

    def __post_init__(self) -> None:
        dims = len(self.global_shape)
        if (len(self.offsets), len(self.local_shape)) != (dims, dims):
            raise ValueError(
                f"TensorSlice(offsets={self.offsets}, local_shape={self.local_shape}, "
                f"global_shape={self.global_shape}): they need the same number of dims"
            )
        places = zip(self.offsets, self.local_shape, self.global_shape, strict=True)
        if any(at < 0 or size < 0 or at + size > whole for at, size, whole in places):
            raise ValueError(f"{self}: it exceeds a tensor of {self.global_shape}")

    @classmethod
    def whole(cls, shape: Sequence[int]) -> TensorSlice:
        """All of a tensor."""
        return cls((0,) * len(shape), tuple(shape), tuple(shape))

    @classmethod
    def shard(cls, global_shape: Sequence[int], dim: int, index: int, count: int) -> TensorSlice:
        """Part `index` of `count` along `dim`, cut as `torch.chunk` and `Shard` of DTensor do.

        All parts have the same size, rounded up, except those at the end, which may be smaller or
        empty.

        Raises:
            ValueError: there is no such dim, or no such part.
        """
        shape = tuple(global_shape)
        if not -len(shape) <= dim < len(shape):
            raise ValueError(f"a tensor of shape {shape} has no dim {dim}")
        if not 0 <= index < count:
            raise ValueError(f"there is no part {index} of {count}")
        dim %= len(shape)
        each = -(-shape[dim] // count)
        start = min(index * each, shape[dim])
        stop = min(start + each, shape[dim])
        return cls(
            tuple(start if d == dim else 0 for d in range(len(shape))),
            tuple(stop - start if d == dim else size for d, size in enumerate(shape)),
            shape,
        )

    @property
    def index(self) -> tuple[slice, ...]:
        """The index of this part in the whole: `tensor[part.index]`."""
        places = zip(self.offsets, self.local_shape, strict=True)
        return tuple(slice(at, at + size) for at, size in places)

    def __str__(self) -> str:
        where = ", ".join(f"{s.start}:{s.stop}" for s in self.index)
        return f"[{where}] of {self.global_shape}"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a slot, row-major. `offset`: in bytes, from the start of the slot."""

    name: str
    kind: Kind
    dtype: str
    itemsize: int
    part: TensorSlice
    offset: int

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.itemsize * prod(self.part.local_shape)

    @property
    def shape(self) -> Shape:
        """The shape of this part."""
        return self.part.local_shape


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """The layout of each slot of a published state dict; all slots have the same."""

    entries: tuple[Entry, ...]
    slot_size: int

    @property
    def size(self) -> int:
        """Bytes of one version, without the gaps."""
        return sum(entry.size for entry in self.entries)

    def validate(self) -> None:
        """Raise ValueError if an entry exceeds its slot. Layouts come from other processes."""
        for entry in self.entries:
            if entry.itemsize <= 0 or not 0 <= entry.offset <= self.slot_size - entry.size:
                raise ValueError(f"{entry.name!r} exceeds its slot")


class Facts(msgspec.Struct, frozen=True):
    """The type and shape of a tensor."""

    kind: Kind
    dtype: str
    itemsize: int
    shape: Shape


def check_slices(parts: Mapping[str, object]) -> None:
    """Raise TypeError if a value is not a TensorSlice."""
    for name, part in parts.items():
        if not isinstance(part, TensorSlice):
            kind = type(part).__qualname__
            raise TypeError(f"the slice of {name!r} is of type {kind}: give a TensorSlice")


def laid_out(tensors: Mapping[str, Facts], parts: Mapping[str, TensorSlice]) -> Layout:
    """The layout of these tensors, in their order, each aligned. `parts`: slices of shards.

    Raises:
        ValueError: a part differs from the shape of its tensor, or has no tensor.
    """
    unknown = [name for name in parts if name not in tensors]
    if unknown:
        raise ValueError(f"slices of names that the state dict lacks: {', '.join(unknown)}")
    entries: list[Entry] = []
    at = 0
    check_slices(parts)
    for name, facts in tensors.items():
        part = parts.get(name) or TensorSlice.whole(facts.shape)
        if part.local_shape != facts.shape:
            raise ValueError(f"{name!r} has shape {facts.shape}, its slice is {part}")
        entry = Entry(name, facts.kind, facts.dtype, facts.itemsize, part, at)
        entries.append(entry)
        at += -(-entry.size // ALIGNED) * ALIGNED
    return Layout(tuple(entries), max(at, ALIGNED))
