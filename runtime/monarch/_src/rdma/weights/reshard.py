"""Which bytes of which shards make up the part of a tensor that somebody wants.

No I/O. A tensor is held in parts by several publishers, which may overlap (replicas). What is
wanted is cut into boxes, each within one held part and no two of them overlapping; what no part
covers is told. A box is then a number of *runs*: bytes that lie in a row on both sides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

import msgspec

from monarch._src.rdma.weights.layout import Shape, TensorSlice


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
        """How long it is in each dim."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    def common(self, other: Box) -> Box | None:
        """What both hold; None if that is nothing."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return None if any(a >= b for a, b in zip(start, stop, strict=True)) else Box(start, stop)

    def without(self, inner: Box) -> Iterator[Box]:
        """What is left of it when a box within it is taken out, in boxes that don't overlap."""
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
    """Boxes that make up what is wanted, each with the number of the part that has it; the rest.

    Parts are asked from `first` on: who has many readers of replicas can spread them.
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


class Runs(msgspec.Struct, frozen=True):
    """A box as it lies in a part that is held and in one that is wanted, counted in elements.

    `length` elements in a row, `count` times. `start` to `stop` is where all of them lie in what
    is held, and `strides` leads from one to the next there, dim by dim.
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
        """Where each begins in what is held, and in what is wanted."""
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
        """What picks the box out of what is wanted."""
        starts = zip(self.box.start, self.wanted.offsets, self.box.shape, strict=True)
        return tuple(slice(a - b, a - b + n) for a, b, n in starts)


def runs_of(box: Box, held: TensorSlice, wanted: TensorSlice) -> Runs:
    """See Runs. The box lies in both."""
    shape, strides = box.shape, strides_of(held.local_shape)
    outer = _outer(shape, held.local_shape, wanted.local_shape)
    start = _at(box, held, strides)
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return Runs(
        box, held, wanted, prod(shape[outer:]), prod(shape[:outer]), start, start + last + 1,
        strides,
    )  # fmt: skip


def strides_of(shape: Shape) -> Shape:
    """How many elements lie between neighbours of each dim, row-major."""
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def _outer(shape: Shape, held: Shape, wanted: Shape) -> int:
    """How many dims, from the first, have to be walked through: those after lie in a row."""
    for d in range(len(shape) - 1, -1, -1):
        if not shape[d] == held[d] == wanted[d]:
            return d
    return 0


def _at(box: Box, part: TensorSlice, strides: Shape) -> int:
    steps = zip(box.start, part.offsets, strides, strict=True)
    return sum((a - b) * stride for a, b, stride in steps)
