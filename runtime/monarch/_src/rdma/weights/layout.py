"""The layout of a state dict: its tensors, with type, shape, part and offset of each.

No I/O, and plain data only: a layout travels in a handle, and allows all checks before a byte
moves. Nothing here knows torch or numpy; an element type is a name that both use.

`covered` and `runs_of` compute which bytes of which shards make up a wanted part of a tensor.
Several publishers hold parts of a tensor, which may overlap (replicas). The wanted part is cut into
boxes that do not overlap, each within one held part; elements that no part covers are reported. A
box then consists of *runs*: elements that are contiguous on both sides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
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


class Box(msgspec.Struct, frozen=True):
    """A rectangular range of the elements of a tensor: from `start` up to `stop` in each dim."""

    start: Shape
    stop: Shape

    @staticmethod
    def of(part: TensorSlice) -> Box:
        """The range of a part."""
        ends = tuple(at + n for at, n in zip(part.offsets, part.local_shape, strict=True))
        return Box(part.offsets, ends)

    @property
    def shape(self) -> Shape:
        """Its length in each dim."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    def common(self, other: Box) -> Box | None:
        """The intersection of two boxes; None if it is empty."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return None if any(a >= b for a, b in zip(start, stop, strict=True)) else Box(start, stop)

    def without(self, inner: Box) -> Iterator[Box]:
        """The rest of this box without a box inside it, as boxes that do not overlap."""
        start, stop = list(self.start), list(self.stop)
        for d, (low, high) in enumerate(zip(inner.start, inner.stop, strict=True)):
            if start[d] < low:
                yield Box(tuple(start), (*stop[:d], low, *stop[d + 1 :]))
            if high < stop[d]:
                yield Box((*start[:d], high, *start[d + 1 :]), tuple(stop))
            start[d], stop[d] = low, high

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{b}' for a, b in zip(self.start, self.stop, strict=True))}]"


def covered(
    wanted: TensorSlice, held: Sequence[TensorSlice], first: int = 0
) -> tuple[list[tuple[int, Box]], list[Box]]:
    """Boxes that make up the wanted part, each with the number of the held part; then the rest.

    Held parts are tried from `first` on, so that many readers can be spread over replicas.
    """
    found: list[tuple[int, Box]] = []
    left = [Box.of(wanted)] if prod(wanted.local_shape) else []
    for step in range(len(held)):
        if not left:
            break
        number = (first + step) % len(held)
        part = Box.of(held[number])
        rest: list[Box] = []
        for box in left:
            common = box.common(part)
            if common is None:
                rest.append(box)
            else:
                found.append((number, common))
                rest += box.without(common)
        left = rest
    return found, left


class ElementRuns(msgspec.Struct, frozen=True):
    """A box, as it lies in a held part and in the wanted part, counted in elements.

    It consists of `count` runs of `length` contiguous elements. In the held part they lie within
    `start` to `stop`; `strides` are the distances there, dim by dim.
    """

    box: Box
    held: TensorSlice
    wanted: TensorSlice
    length: int
    count: int
    start: int
    stop: int
    strides: Shape

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The start of each run in the held part and in the wanted part."""
        here, there = strides_of(self.held.local_shape), strides_of(self.wanted.local_shape)
        shape = self.box.shape
        outer = _outer(shape, self.held.local_shape, self.wanted.local_shape)
        source, target = _at(self.box, self.held, here), _at(self.box, self.wanted, there)
        for place in itertools.product(*(range(n) for n in shape[:outer])):
            yield (
                source + sum(a * b for a, b in zip(place, here, strict=False)),
                target + sum(a * b for a, b in zip(place, there, strict=False)),
            )

    @property
    def places(self) -> tuple[slice, ...]:
        """The index of the box in the wanted part."""
        starts = zip(self.box.start, self.wanted.offsets, self.box.shape, strict=True)
        return tuple(slice(a - b, a - b + n) for a, b, n in starts)


def runs_of(box: Box, held: TensorSlice, wanted: TensorSlice) -> ElementRuns:
    """The runs of a box that lies in both parts."""
    shape, strides = box.shape, strides_of(held.local_shape)
    outer = _outer(shape, held.local_shape, wanted.local_shape)
    start = _at(box, held, strides)
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return ElementRuns(
        box, held, wanted, prod(shape[outer:]), prod(shape[:outer]), start, start + last + 1,
        strides,
    )  # fmt: skip


def strides_of(shape: Shape) -> Shape:
    """The distance in elements between neighbours in each dim, row-major."""
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def _outer(shape: Shape, held: Shape, wanted: Shape) -> int:
    """How many leading dims have to be iterated; elements of the others are contiguous."""
    for d in range(len(shape) - 1, -1, -1):
        if not shape[d] == held[d] == wanted[d]:
            return d
    return 0


def _at(box: Box, part: TensorSlice, strides: Shape) -> int:
    steps = zip(box.start, part.offsets, strides, strict=True)
    return sum((a - b) * stride for a, b, stride in steps)
