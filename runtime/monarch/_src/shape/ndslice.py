"""NDSlice: ranks laid out as an offset, sizes and strides. No I/O.

Invariants: every size and stride is at least 1, and strides nest: the stride of an axis is larger
than the span of all axes with smaller strides together (axes of size 1 have no span and are
ignored). So no rank appears twice, and each rank has one set of coordinates, found by division from
the largest stride down. Taking a strided part of an axis, dropping an axis and splitting one all
keep the strides nested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from operator import index as as_int
from typing import cast, overload


class NDSlice:
    """A strided, n-dimensional view of ranks, in row-major order. Immutable, hashable, picklable.

    ``offset`` is the rank at coordinates zero; ``sizes`` and ``strides`` have one entry for each
    axis. Without axes it is the single rank ``offset``. TypeError if an argument is not an int;
    ValueError if the offset is negative, a size or stride is below 1, their numbers differ, or one
    rank would have two sets of coordinates.
    """

    __slots__ = ("_by_stride", "_len", "_offset", "_ranks", "_sizes", "_strides")

    _offset: int
    _sizes: tuple[int, ...]
    _strides: tuple[int, ...]
    _len: int
    _ranks: Sequence[int] | None  # computed on first use
    _by_stride: tuple[int, ...] | None  # axes longer than 1, largest stride first; likewise

    def __init__(self, *, offset: int, sizes: Iterable[int], strides: Iterable[int]) -> None:
        self._set(
            as_int(offset),
            tuple(as_int(size) for size in sizes),
            tuple(as_int(stride) for stride in strides),
        )
        self._check()

    def _set(self, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self._offset = offset
        self._sizes = sizes
        self._strides = strides
        self._len = prod(sizes)
        self._ranks = None
        self._by_stride = None

    def _check(self) -> None:
        if len(self._sizes) != len(self._strides):
            raise ValueError(
                f"NDSlice: {len(self._sizes)} sizes but {len(self._strides)} strides; give one of "
                "each for every axis"
            )
        if self._offset < 0:
            raise ValueError(
                f"NDSlice: offset {self._offset} is negative; it is a rank, and ranks begin at 0"
            )
        for name, values in (("size", self._sizes), ("stride", self._strides)):
            for axis, value in enumerate(values):
                if value < 1:
                    raise ValueError(
                        f"NDSlice: {name} {value} of axis {axis} is not positive; the smallest is 1"
                    )
        span = 0
        for axis in reversed(self._axes_by_stride()):
            if self._strides[axis] <= span:
                raise ValueError(
                    f"NDSlice: sizes {list(self._sizes)} with strides {list(self._strides)} "
                    "overlap: stride "
                    f"{self._strides[axis]} of axis {axis} must be larger than {span}, the span of "
                    "the smaller strides"
                )
            span += (self._sizes[axis] - 1) * self._strides[axis]

    @classmethod
    def _of(cls, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> NDSlice:
        """Without the checks, for views of slices that were checked."""
        self = cls.__new__(cls)
        self._set(offset, sizes, strides)
        return self

    @classmethod
    def new_row_major(cls, sizes: Iterable[int], offset: int = 0) -> NDSlice:
        """The dense slice of these sizes whose ranks are ``offset, offset + 1, ...``."""
        sizes = tuple(as_int(size) for size in sizes)
        strides: list[int] = []
        stride = 1
        for size in reversed(sizes):
            strides.append(stride)
            stride *= size if size > 0 else 1  # a bad size is reported below, not here
        return cls(offset=offset, sizes=sizes, strides=reversed(strides))

    @property
    def offset(self) -> int:
        """The rank at coordinates zero, which is the smallest."""
        return self._offset

    @property
    def sizes(self) -> list[int]:
        """The number of steps along each axis."""
        return list(self._sizes)

    @property
    def strides(self) -> list[int]:
        """How far apart, in ranks, neighbours along each axis are."""
        return list(self._strides)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._sizes)

    # Ranks and positions. A *rank* is global; a *position* counts from 0 in row-major order of this
    # slice.

    def ranks(self) -> Sequence[int]:
        """All ranks, row-major: a ``range`` if one stride suffices, otherwise a tuple. Cached."""
        if self._ranks is None:
            stride = self._single_stride()
            if stride is not None:
                self._ranks = range(self._offset, self._offset + self._len * stride, stride)
            else:
                ranks = [self._offset]
                for size, stride in zip(self._sizes, self._strides, strict=True):
                    steps = range(0, size * stride, stride)
                    ranks = [rank + step for rank in ranks for step in steps]
                self._ranks = tuple(ranks)
        return self._ranks

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[int]:
        return iter(self.ranks())

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[int, ...]: ...
    def __getitem__(self, position: int | slice) -> int | tuple[int, ...]:
        """The rank at a position, or the ranks at a slice of them. IndexError if there is none."""
        if isinstance(position, slice):
            return tuple(self.ranks()[position])
        if not 0 <= position < self._len:
            raise IndexError(
                f"NDSlice: no position {position}; there are {self._len}, counted from 0"
            )
        return self.ranks()[position]

    def __contains__(self, rank: object) -> bool:
        try:
            return self._coordinates(as_int(cast(int, rank))) is not None
        except TypeError:
            return False

    def nditem(self, coordinates: Sequence[int]) -> int:
        """The rank at these coordinates, one for each axis. IndexError if there is none there."""
        if len(coordinates) != len(self._sizes):
            raise IndexError(f"NDSlice: {len(coordinates)} coordinates for {len(self._sizes)} axes")
        rank = self._offset
        for axis, (at, size, stride) in enumerate(
            zip(coordinates, self._sizes, self._strides, strict=True)
        ):
            if not 0 <= at < size:
                raise IndexError(
                    f"NDSlice: coordinate {at} of axis {axis} is out of range; its size is {size}"
                )
            rank += at * stride
        return rank

    def coordinates(self, rank: int) -> list[int]:
        """The coordinates of a rank, one for each axis. ValueError if it is not in the slice."""
        found = self._coordinates(rank)
        if found is None:
            raise ValueError(self._no_rank(rank))
        return found

    def index(self, rank: int) -> int:
        """The position of a rank. ValueError if the slice doesn't have it."""
        ranks = self.ranks()
        if isinstance(ranks, range):
            if rank not in ranks:
                raise ValueError(self._no_rank(rank))
            return ranks.index(rank)
        position = 0
        for at, size in zip(self.coordinates(rank), self._sizes, strict=True):
            position = position * size + at
        return position

    def _no_rank(self, rank: int) -> str:
        return f"rank {rank} is not in {self!r}"

    def _axes_by_stride(self) -> tuple[int, ...]:
        if self._by_stride is None:
            axes = [axis for axis, size in enumerate(self._sizes) if size > 1]
            self._by_stride = tuple(sorted(axes, key=self._strides.__getitem__, reverse=True))
        return self._by_stride

    def _coordinates(self, rank: int) -> list[int] | None:
        rest = rank - self._offset
        found = [0] * len(self._sizes)
        for axis in self._axes_by_stride():
            found[axis], rest = divmod(rest, self._strides[axis])
            if not 0 <= found[axis] < self._sizes[axis]:
                return None
        return found if rest == 0 else None

    def _single_stride(self) -> int | None:
        """The stride if row-major order visits ranks at equal distances; ignores axes of size 1."""
        single: int | None = None
        expected = 0
        for size, stride in zip(reversed(self._sizes), reversed(self._strides), strict=True):
            if size == 1:
                continue
            if single is None:
                single = stride
            elif stride != expected:
                return None
            expected = stride * size
        return 1 if single is None else single

    # Views. `axis` is an index into sizes; the caller checks its arguments, and names dims in its
    # own errors.

    def drop(self, axis: int, at: int) -> NDSlice:
        """The ranks at one coordinate of an axis; the axis goes. IndexError if out of range."""
        if not 0 <= at < self._sizes[axis]:
            raise IndexError(
                f"NDSlice: coordinate {at} of axis {axis} is out of range; its size is "
                f"{self._sizes[axis]}"
            )
        return NDSlice._of(
            self._offset + at * self._strides[axis],
            self._sizes[:axis] + self._sizes[axis + 1 :],
            self._strides[:axis] + self._strides[axis + 1 :],
        )

    def take(self, axis: int, part: range) -> NDSlice:
        """Only the coordinates in ``part``, an ascending range within the axis, else ValueError."""
        if not part or part.step < 1 or part[0] < 0 or part[-1] >= self._sizes[axis]:
            raise ValueError(
                f"NDSlice: {part} is not an ascending part of axis {axis} of size "
                f"{self._sizes[axis]}"
            )
        return NDSlice._of(
            self._offset + part.start * self._strides[axis],
            (*self._sizes[:axis], len(part), *self._sizes[axis + 1 :]),
            (*self._strides[:axis], part.step * self._strides[axis], *self._strides[axis + 1 :]),
        )

    def split(self, axis: int, sizes: Sequence[int]) -> NDSlice:
        """One axis as several, row-major, with the same ranks.

        ValueError if the sizes don't multiply up to it.
        """
        if any(size < 1 for size in sizes) or prod(sizes) != self._sizes[axis]:
            raise ValueError(
                f"NDSlice: axis {axis} of size {self._sizes[axis]} can't be split into "
                f"{list(sizes)}"
            )
        strides: list[int] = []
        stride = self._strides[axis]
        for size in reversed(sizes):
            strides.append(stride)
            stride *= size
        return NDSlice._of(
            self._offset,
            (*self._sizes[:axis], *sizes, *self._sizes[axis + 1 :]),
            (*self._strides[:axis], *reversed(strides), *self._strides[axis + 1 :]),
        )

    def flatten(self) -> NDSlice:
        """The same ranks, in order, on one axis. ValueError if they are not at equal distances."""
        stride = self._single_stride()
        if stride is None:
            raise ValueError(f"{self!r} can't be one axis: its ranks are not at equal distances")
        return NDSlice._of(self._offset, (self._len,), (stride,))

    # Value semantics.

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NDSlice):
            return NotImplemented
        return (
            self._offset == other._offset
            and self._sizes == other._sizes
            and self._strides == other._strides
        )

    def __hash__(self) -> int:
        return hash((self._offset, self._sizes, self._strides))

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self._offset, self._sizes, self._strides)

    def __repr__(self) -> str:
        return f"NDSlice(offset={self._offset}, sizes={self.sizes}, strides={self.strides})"


def _restore(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> NDSlice:
    return NDSlice(offset=offset, sizes=sizes, strides=strides)
