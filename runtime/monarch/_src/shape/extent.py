"""Extent and Point: the named sizes of a mesh, and one place in it. No I/O.

Invariants: labels are distinct, sizes at least 1; a point's rank is its row-major position in its
extent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import index as as_int
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    from monarch._src.shape.region import Region

_T = TypeVar("_T")


def dims_text(labels: Iterable[str]) -> str:
    """The dims, as errors list them: ``dims hosts, gpus``."""
    text = ", ".join(labels)
    return f"dims {text}" if text else "no dims"


def checked_labels(what: str, labels: Iterable[str]) -> tuple[str, ...]:
    """The labels as a tuple, checked.

    TypeError if they are one string or are not all strings; ValueError if one is empty or repeats.
    """
    if isinstance(labels, str):
        raise TypeError(
            f"{what}: labels is the string {labels!r}; give a sequence, as [{labels!r}]"
        )
    checked = tuple(labels)
    seen: set[str] = set()
    for label in checked:
        if not isinstance(label, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' input
            raise TypeError(
                f"{what}: label {label!r} is a {type(label).__name__}; labels are strings"
            )
        if not label:
            raise ValueError(f"{what}: a label is empty; give every dim a name")
        if label in seen:
            raise ValueError(f"{what}: dim {label!r} appears twice; give every dim its own name")
        seen.add(label)
    return checked


def _checked_size(size: object) -> int:
    try:
        return as_int(size)  # pyright: ignore[reportArgumentType] - users' input, checked here
    except TypeError:
        raise TypeError(
            f"Extent: size {size!r} is a {type(size).__name__}; sizes are ints"
        ) from None


class Extent(Mapping[str, int]):
    """The dims of a mesh and their sizes, as in ``{hosts: 2, gpus: 4}``.

    Immutable, hashable, picklable. A mapping from label to size, in order. Equal to another extent
    with the same dims in the same order, and to nothing else. ValueError for labels that repeat,
    sizes below 1, or one without the other.
    """

    __slots__ = ("_axes", "_labels", "_nelements", "_region", "_sizes")

    _labels: tuple[str, ...]
    _sizes: tuple[int, ...]
    _axes: dict[str, tuple[int, int]]  # label -> (size, row-major stride)
    _nelements: int
    _region: Region | None

    def __init__(self, labels: Iterable[str], sizes: Iterable[int]) -> None:
        self._labels = checked_labels("Extent", labels)
        self._sizes = tuple(_checked_size(size) for size in sizes)
        if len(self._labels) != len(self._sizes):
            raise ValueError(
                f"Extent: {len(self._labels)} labels but {len(self._sizes)} sizes; give one size "
                "for every label"
            )
        self._axes = {}
        stride = 1
        for label, size in zip(reversed(self._labels), reversed(self._sizes), strict=True):
            if size < 1:
                raise ValueError(f"Extent: dim {label!r} has size {size}; the smallest size is 1")
            self._axes[label] = (size, stride)
            stride *= size
        self._nelements = stride
        self._region = None

    @property
    def labels(self) -> list[str]:
        """The names of the dims, in order."""
        return list(self._labels)

    @property
    def sizes(self) -> list[int]:
        """The sizes of the dims, in the order of the labels."""
        return list(self._sizes)

    @property
    def nelements(self) -> int:
        """The number of points: the product of the sizes, 1 without dims."""
        return self._nelements

    @property
    def region(self) -> Region:
        """The dense region of these dims: ranks 0 to nelements - 1, row-major. Made once."""
        if self._region is None:
            # Region is built on Extent, so its module can't be imported at the top of this one.
            from monarch._src.shape.region import Region

            self._region = Region.of_extent(self)
        return self._region

    def point(self, **coords: int) -> Point:
        """The point at these coordinates, one for each dim.

        ValueError if a dim is unknown or missing, IndexError if a coordinate is out of range.
        """
        for label in coords:
            if label not in self._axes:
                raise ValueError(self._unknown(label))
        rank = 0
        for label, size in zip(self._labels, self._sizes, strict=True):
            if label not in coords:
                raise ValueError(
                    f"no coordinate for dim {label!r}; {self!r} needs {dims_text(self._labels)}"
                )
            at = as_int(coords[label])
            if not 0 <= at < size:
                raise IndexError(f"{label}={at} is out of range; dim {label!r} has size {size}")
            rank = rank * size + at
        return Point(rank, self)

    def point_of_rank(self, rank: int) -> Point:
        """The point at a row-major rank. ValueError if it is out of range."""
        return Point(rank, self)

    def points(self) -> Iterator[Point]:
        """Every point, in rank order."""
        for rank in range(self._nelements):
            yield Point(rank, self)

    def _axis(self, label: str) -> tuple[int, int]:
        try:
            return self._axes[label]
        except KeyError:
            raise ValueError(self._unknown(label)) from None

    def _unknown(self, label: object) -> str:
        return f"no dim {label!r} in {self!r}; it has {dims_text(self._labels)}"

    # The mapping. An unknown label is a ValueError, as in Monarch; `in` and `get` answer as for any
    # mapping.

    def __getitem__(self, label: str) -> int:
        return self._axis(label)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __contains__(self, label: object) -> bool:
        return label in self._axes

    @overload
    def get(self, key: str, /) -> int | None: ...
    @overload
    def get(self, key: str, /, default: int | _T) -> int | _T: ...
    def get(self, key: str, /, default: int | _T | None = None) -> int | _T | None:
        """The size of a dim, or the default if there is no such dim."""
        return self._axes[key][0] if key in self._axes else default

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Extent):
            return NotImplemented
        return self._labels == other._labels and self._sizes == other._sizes

    def __hash__(self) -> int:
        return hash((self._labels, self._sizes))

    def __reduce__(self) -> tuple[object, ...]:
        return Extent, (self._labels, self._sizes)

    def __repr__(self) -> str:
        dims = ", ".join(
            f"{label}: {size}" for label, size in zip(self._labels, self._sizes, strict=True)
        )
        return f"{{{dims}}}"


class Point(Mapping[str, int]):
    """One place in an extent, as in ``{'hosts': 1/2, 'gpus': 1/4}``.

    Immutable, picklable, not hashable. A mapping from label to coordinate. ``rank`` is its
    row-major position. Equal to a point with the same rank and extent, and to nothing else.
    ValueError if the extent has no such rank.
    """

    __slots__ = ("_extent", "_rank")

    _rank: int
    _extent: Extent

    def __init__(self, rank: int, extent: Extent) -> None:
        rank = as_int(rank)
        if not 0 <= rank < extent.nelements:
            raise ValueError(
                f"rank {rank} is out of range; {extent!r} has ranks 0 to {extent.nelements - 1}"
            )
        self._rank = rank
        self._extent = extent

    @property
    def rank(self) -> int:
        """The row-major position in the extent."""
        return self._rank

    @property
    def extent(self) -> Extent:
        """The extent that contains the point."""
        return self._extent

    def size(self, label: str) -> int:
        """The size of a dim of the extent. ValueError if there is no such dim."""
        return self._extent[label]

    def __getitem__(self, label: str) -> int:
        size, stride = self._extent._axis(label)  # pyright: ignore[reportPrivateUsage] - same file
        return self._rank // stride % size

    def __iter__(self) -> Iterator[str]:
        return iter(self._extent)

    def __len__(self) -> int:
        return len(self._extent)

    def __contains__(self, label: object) -> bool:
        return label in self._extent

    @overload
    def get(self, key: str, /) -> int | None: ...
    @overload
    def get(self, key: str, /, default: int | _T) -> int | _T: ...
    def get(self, key: str, /, default: int | _T | None = None) -> int | _T | None:
        """The coordinate along a dim, or the default if there is no such dim."""
        return self[key] if key in self._extent else default

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return self._rank == other._rank and self._extent == other._extent

    __hash__ = None  # pyright: ignore[reportAssignmentType] - unhashable, as in Monarch

    def __reduce__(self) -> tuple[object, ...]:
        return Point, (self._rank, self._extent)

    def __repr__(self) -> str:
        dims = ", ".join(f"{label!r}: {self[label]}/{size}" for label, size in self._extent.items())
        return f"{{{dims}}}"
