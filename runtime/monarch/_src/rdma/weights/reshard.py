"""Computes which bytes of which shards make up a wanted part of a tensor.

No I/O. Several publishers hold parts of a tensor, which may overlap (replicas). The wanted part is
cut into boxes that do not overlap, each within one held part; elements that no part covers are
reported. A box then consists of *runs*: elements that are contiguous on both sides.
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


class Runs(msgspec.Struct, frozen=True):
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


def runs_of(box: Box, held: TensorSlice, wanted: TensorSlice) -> Runs:
    """The runs of a box that lies in both parts."""
    shape, strides = box.shape, strides_of(held.local_shape)
    outer = _outer(shape, held.local_shape, wanted.local_shape)
    start = _at(box, held, strides)
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return Runs(
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
