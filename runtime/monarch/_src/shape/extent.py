"""Extent, Point and Region: the named sizes of a mesh, one place in it, its ranks. No I/O.

An extent has a dense region, and a region has an extent, so both are in this module.

A *global rank* is a rank of the mesh that was spawned; a *position* counts from 0 in row-major
order of the region, and is the rank that a message sent to this slice reports. Every mesh operation
is a method of `Region` and returns a region of the same global ranks or of a part of them.

Invariants: labels are distinct, sizes at least 1; a point's rank is its row-major position in its
extent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from operator import index as as_int
from typing import Any, TypeAlias, TypeVar, overload

from monarch._src.shape.ndslice import NDSlice

_T = TypeVar("_T")
Selector: TypeAlias = "int | slice[Any, Any, Any]"
"""An argument of `slice`: one coordinate, or a Python slice of them."""


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

    Immutable, picklable, hashable. A mapping from label to coordinate. ``rank`` is its row-major
    position. Equal to a point with the same rank and extent, and to nothing else.
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

    def __hash__(self) -> int:
        return hash((self._rank, self._extent))

    def __reduce__(self) -> tuple[object, ...]:
        return Point, (self._rank, self._extent)

    def __repr__(self) -> str:
        dims = ", ".join(f"{label!r}: {self[label]}/{size}" for label, size in self._extent.items())
        return f"{{{dims}}}"


class Region:
    """A strided view of global ranks with named dims. Immutable, hashable, picklable.

    ``labels`` name the axes of ``ndslice``. ValueError if their numbers differ or a label repeats.
    """

    __slots__ = ("_extent", "_labels", "_ndslice")

    _labels: tuple[str, ...]
    _ndslice: NDSlice
    _extent: Extent | None  # made on first use

    def __init__(self, labels: Iterable[str], ndslice: NDSlice) -> None:
        self._labels = checked_labels("Region", labels)
        if len(self._labels) != ndslice.ndim:
            raise ValueError(
                f"Region: {len(self._labels)} labels for the {ndslice.ndim} axes of {ndslice!r}; "
                "give one label for every axis"
            )
        self._ndslice = ndslice
        self._extent = None

    @classmethod
    def of_extent(cls, extent: Extent) -> Region:
        """The dense region of an extent: ranks from 0, row-major. ``extent.region`` keeps it."""
        self = cls._of(tuple(extent.labels), NDSlice.new_row_major(extent.sizes))
        self._extent = extent
        return self

    @classmethod
    def _of(cls, labels: tuple[str, ...], ndslice: NDSlice) -> Region:
        """Without the checks, for views of regions that were checked."""
        self = cls.__new__(cls)
        self._labels = labels
        self._ndslice = ndslice
        self._extent = None
        return self

    @property
    def labels(self) -> list[str]:
        """The names of the dims, in order."""
        return list(self._labels)

    @property
    def ndslice(self) -> NDSlice:
        """The ranks without the names."""
        return self._ndslice

    @property
    def extent(self) -> Extent:
        """The dims and their sizes. Made once."""
        if self._extent is None:
            self._extent = Extent(self._labels, self._ndslice.sizes)
        return self._extent

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dim, in order."""
        return dict(zip(self._labels, self._ndslice.sizes, strict=True))

    # Ranks and positions.

    def ranks(self) -> Sequence[int]:
        """The global ranks, by position: a ``range`` if one stride suffices, otherwise a tuple."""
        return self._ndslice.ranks()

    def global_rank(self, position: int) -> int:
        """The global rank at a position. IndexError if there is no such position."""
        if not 0 <= position < len(self._ndslice):
            raise IndexError(
                f"position {position} is out of range; {self.extent!r} has {len(self._ndslice)}, "
                "counted from 0"
            )
        return self._ndslice.ranks()[position]

    def position(self, global_rank: int) -> int:
        """The position of a global rank. ValueError if it is not in the region."""
        return self._ndslice.index(global_rank)

    def point_of_base_rank(self, global_rank: int) -> Point:
        """The place of a global rank in the region. ValueError if it is not there."""
        return self.extent.point_of_rank(self.position(global_rank))

    def __len__(self) -> int:
        return len(self._ndslice)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ndslice.ranks())

    def __contains__(self, global_rank: object) -> bool:
        return global_rank in self._ndslice

    # Mesh operations.

    def slice(self, **dims: Selector) -> Region:
        """A part of the region.

        An int keeps one coordinate and drops the dim, a slice keeps the dim. Slices are Python's:
        bounds beyond the size are clamped, negative ones count from the end, and a step takes every
        nth. TypeError for an unknown dim or a selector that is neither; IndexError for an int that
        is negative or out of range; ValueError for a slice that selects nothing or a step below 1.
        """
        if not dims:
            return self
        for label in dims:
            if label not in self._labels:
                raise TypeError(f"slice: no dim {label!r}; there are {dims_text(self._labels)}")
        ndslice = self._ndslice
        labels: list[str] = []
        for label, size in zip(self._labels, self._ndslice.sizes, strict=True):
            axis = len(labels)  # of `ndslice`, from which some dims have been dropped by now
            if label not in dims:
                labels.append(label)
            elif isinstance(selector := dims[label], slice):
                ndslice = ndslice.take(axis, _part(label, size, selector))
                labels.append(label)
            else:
                ndslice = ndslice.drop(axis, _coordinate(label, size, selector))
        return Region._of(tuple(labels), ndslice)

    def split(self, **dims: Sequence[str] | int) -> Region:
        """Dims split into several, as in ``split(host=("dp", "pp"), pp=2)``.

        The ranks and their order stay. A sequence names the dims that replace a dim, an int gives
        the size of a new dim; for each split, one size may be left out and is computed. ValueError
        for an unknown dim, a name that is taken, sizes that do not divide or multiply up to the
        dim, more than one size left out, or a size for a dim that no split names.
        """
        if not dims:
            return self
        given: dict[str, int] = {}
        parts: dict[str, tuple[str, ...]] = {}
        for label, value in dims.items():
            if isinstance(value, str):
                raise ValueError(
                    f"split: {label}={value!r} is a string; name the new dims in a sequence, as "
                    f"{label}=({value!r},)"
                )
            if isinstance(value, Sequence):
                if label not in self._labels:
                    raise ValueError(
                        f"split: no dim {label!r} to split; there are {dims_text(self._labels)}"
                    )
                parts[label] = tuple(value)
            else:
                given[label] = _new_size(label, value)
        labels: list[str] = []
        ndslice = self._ndslice
        for label, size in zip(self._labels, self._ndslice.sizes, strict=True):
            if label in parts:
                sizes = _split_sizes(label, size, parts[label], given)
                ndslice = ndslice.split(len(labels), sizes)
                labels.extend(parts[label])
            else:
                labels.append(label)
        new = {name for names in parts.values() for name in names}
        for label in given:
            if label not in new:
                raise ValueError(
                    f"split: {label}={given[label]} sizes a dim that no split names; "
                    f"name it in a split, as dim=({label!r}, ...)"
                )
        return Region._of(checked_labels("split", labels), ndslice)

    def flatten(self, name: str) -> Region:
        """All dims as one, in rank order. Without dims it gives one dim of size 1.

        ValueError if the ranks are not at equal distances, so that no single stride describes them.
        """
        labels = checked_labels("flatten", [name])
        try:
            return Region._of(labels, self._ndslice.flatten())
        except ValueError:
            raise ValueError(
                f"flatten: {self!r} can't be one dim: its ranks are not at equal distances. "
                "Flatten before slicing, or take whole dims"
            ) from None

    def rename(self, **names: str) -> Region:
        """The same region with dims renamed, as in ``rename(old="new")``; names may be exchanged.

        ValueError for an unknown dim or if two dims would have the same name.
        """
        for label in names:
            if label not in self._labels:
                raise ValueError(
                    f"rename: no dim {label!r} to rename; there are {dims_text(self._labels)}"
                )
        labels = checked_labels("rename", [names.get(label, label) for label in self._labels])
        return Region._of(labels, self._ndslice)

    # Value semantics.

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Region):
            return NotImplemented
        return self._labels == other._labels and self._ndslice == other._ndslice

    def __hash__(self) -> int:
        return hash((self._labels, self._ndslice))

    def __reduce__(self) -> tuple[object, ...]:
        return Region, (self._labels, self._ndslice)

    def __repr__(self) -> str:
        ndslice = self._ndslice
        return f"Region({self.extent!r}, offset={ndslice.offset}, strides={ndslice.strides})"


def _coordinate(label: str, size: int, selector: object) -> int:
    try:
        at = as_int(selector)  # pyright: ignore[reportArgumentType] - users' input, checked here
    except TypeError:
        raise TypeError(
            f"slice: {label}={selector!r} is a {type(selector).__name__}; give an int or a slice"
        ) from None
    if not 0 <= at < size:
        raise IndexError(
            f"slice: {label}={at} is out of range; dim {label!r} has size {size}, so 0 to "
            f"{size - 1}"
        )
    return at


def _part(label: str, size: int, selector: slice[Any, Any, Any]) -> range:
    try:
        step = 1 if selector.step is None else as_int(selector.step)
        if step < 1:
            raise ValueError(
                f"slice: {label}={_slice_text(selector)} has step {step}, which is not "
                "ascending; "
                "give a step of 1 or more"
            )
        part = range(*selector.indices(size))
    except TypeError:
        raise TypeError(
            f"slice: {label}={_slice_text(selector)} has a bound that is not an int; give ints or "
            "leave them out"
        ) from None
    if not part:
        raise ValueError(
            f"slice: {label}={_slice_text(selector)} selects nothing; dim {label!r} has size "
            f"{size}, so 0 to {size - 1}"
        )
    return part


def _slice_text(selector: slice[Any, Any, Any]) -> str:
    bounds = [selector.start, selector.stop]
    if selector.step is not None:
        bounds.append(selector.step)
    return ":".join("" if bound is None else repr(bound) for bound in bounds)


def _new_size(label: str, value: object) -> int:
    try:
        size = as_int(value)  # pyright: ignore[reportArgumentType] - users' input, checked here
    except TypeError:
        raise TypeError(
            f"split: {label}={value!r} is a {type(value).__name__}; give new dims as a sequence, "
            "or a size"
        ) from None
    if size < 1:
        raise ValueError(f"split: {label}={size} is not a size; the smallest is 1")
    return size


def _split_sizes(
    label: str, size: int, names: tuple[str, ...], given: Mapping[str, int]
) -> list[int]:
    """The sizes of the new dims of one split, including the one that was left out."""
    if not names:
        raise ValueError(f"split: {label}=() names no dims; give at least one, or slice it away")
    unknown = [name for name in names if name not in given]
    if len(unknown) > 1:
        raise ValueError(
            f"split: dim {label!r} of size {size} into {', '.join(names)}: sizes of "
            f"{', '.join(unknown)} are left out, "
            f"and only one can be computed; give the others, as {unknown[-1]}={size}"
        )
    known = prod(given[name] for name in names if name in given)
    if size % known or (not unknown and known != size):
        wanted = " x ".join(str(given.get(name, "?")) for name in names)
        raise ValueError(
            f"split: dim {label!r} of size {size} can't be split into {', '.join(names)} of sizes "
            f"{wanted}; "
            f"their product must be {size}"
        )
    return [given.get(name, size // known) for name in names]
