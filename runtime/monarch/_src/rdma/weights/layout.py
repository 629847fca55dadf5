"""What a state dict looks like: which tensors, of what type and shape, which part, at what offset.

No I/O, and plain data only: it travels in a handle, and says all that there is to check before a
byte moves. Nothing here knows torch or numpy; a type of elements is a name that both give it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

import msgspec

ALIGNED = 64  # bytes: of a tensor in its slot, so that vector instructions have whole lines
Kind = Literal["torch", "numpy"]
Shape = tuple[int, ...]


class TensorSlice(msgspec.Struct, frozen=True):
    """A rectangular part of a tensor: where it begins, its shape, and that of the whole.

    One process may have such a part of a tensor, and another want such a part of it.

    Raises:
        ValueError: the three differ in their number of dims, or it does not lie in the whole.
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
            raise ValueError(f"{self}: it does not lie within a tensor of {self.global_shape}")

    @classmethod
    def whole(cls, shape: Sequence[int]) -> TensorSlice:
        """All of a tensor."""
        return cls((0,) * len(shape), tuple(shape), tuple(shape))

    @classmethod
    def shard(cls, global_shape: Sequence[int], dim: int, index: int, count: int) -> TensorSlice:
        """Part `index` of `count` along `dim`, cut as `torch.chunk` and `Shard` of DTensor do.

        Each has the same size, rounded up, but for those at the end, which may have less, or
        nothing.

        Raises:
            ValueError: no such dim, or no such part.
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
        """What picks this part out of the whole: `tensor[part.index]`."""
        places = zip(self.offsets, self.local_shape, strict=True)
        return tuple(slice(at, at + size) for at, size in places)

    def __str__(self) -> str:
        where = ", ".join(f"{s.start}:{s.stop}" for s in self.index)
        return f"[{where}] of {self.global_shape}"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a slot. `offset`: in bytes, from the start of the slot; row-major there."""

    name: str
    kind: Kind
    dtype: str
    itemsize: int
    part: TensorSlice
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.itemsize * prod(self.part.local_shape)

    @property
    def shape(self) -> Shape:
        """Of what is there."""
        return self.part.local_shape


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """What each slot of a published state dict holds; all slots are alike."""

    entries: tuple[Entry, ...]
    slot_size: int

    @property
    def size(self) -> int:
        """Bytes of one version, without the gaps."""
        return sum(entry.size for entry in self.entries)

    def validate(self) -> None:
        """ValueError if an entry does not lie within a slot: these came from somewhere else."""
        for entry in self.entries:
            if entry.itemsize <= 0 or not 0 <= entry.offset <= self.slot_size - entry.size:
                raise ValueError(f"{entry.name!r} does not lie within its slot")


class Facts(msgspec.Struct, frozen=True):
    """What is known of a tensor without looking at its elements."""

    kind: Kind
    dtype: str
    itemsize: int
    shape: Shape


def check_slices(parts: Mapping[str, object]) -> None:
    """TypeError if something there is no TensorSlice."""
    for name, part in parts.items():
        if not isinstance(part, TensorSlice):
            kind = type(part).__qualname__
            raise TypeError(f"the slice of {name!r} is of type {kind}: give a TensorSlice")


def laid_out(tensors: Mapping[str, Facts], parts: Mapping[str, TensorSlice]) -> Layout:
    """One after the other, each aligned. `parts`: which parts those are that are not whole.

    Raises:
        ValueError: a part is not of the shape of its tensor, or of none.
    """
    unknown = [name for name in parts if name not in tensors]
    if unknown:
        raise ValueError(f"slices of what is not in the state dict: {', '.join(unknown)}")
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
