"""Shape: a Region under the names that Monarch's programs use. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from monarch._src.shape.extent import Extent, Region, dims_text
from monarch._src.shape.ndslice import NDSlice


class Shape:
    """Labels and an NDSlice, printed ``{hosts=2,gpus=4}``. Immutable, hashable, picklable.

    ValueError if there is not one distinct label for every axis.
    """

    __slots__ = ("_region",)

    _region: Region

    def __init__(self, labels: Iterable[str], ndslice: NDSlice) -> None:
        self._region = Region(labels, ndslice)

    @classmethod
    def of_region(cls, region: Region) -> Shape:
        """The same view as a shape."""
        self = cls.__new__(cls)
        self._region = region
        return self

    @classmethod
    def unity(cls) -> Shape:
        """The shape without dims: the single rank 0."""
        return cls.of_region(Extent((), ()).region)

    @property
    def labels(self) -> list[str]:
        """The names of the dims, in order."""
        return self._region.labels

    @property
    def ndslice(self) -> NDSlice:
        """The ranks without the names."""
        return self._region.ndslice

    @property
    def extent(self) -> Extent:
        """The dims and their sizes."""
        return self._region.extent

    @property
    def region(self) -> Region:
        """The same view as a region."""
        return self._region

    def at(self, label: str, index: int) -> Shape:
        """One coordinate of a dim; the dim goes. ValueError if it is out of range."""
        self._known(label)
        if isinstance(index, slice):  # pyright: ignore[reportUnnecessaryIsInstance] - users' input
            raise TypeError(f"at: {index!r} is not an int; use select() for a part of a dim")
        try:
            return Shape.of_region(self._region.slice(**{label: index}))
        except IndexError as error:
            raise ValueError(str(error)) from None

    def select(self, label: str, slice: slice[Any, Any, Any]) -> Shape:
        """A part of a dim; the dim stays. ValueError for an unknown dim or an empty part."""
        self._known(label)
        if not hasattr(slice, "indices"):
            raise TypeError(f"select: {slice!r} is not a slice; use at() for one coordinate")
        return Shape.of_region(self._region.slice(**{label: slice}))

    def _known(self, label: str) -> None:
        if label not in self._region.extent:
            raise ValueError(f"no dim {label!r} in {self}; it has {dims_text(self.labels)}")

    def ranks(self) -> Sequence[int]:
        """The ranks in row-major order."""
        return self._region.ranks()

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank, by label. ValueError if the shape does not have it."""
        return dict(zip(self.labels, self.ndslice.coordinates(rank), strict=True))

    def __len__(self) -> int:
        return len(self._region)

    def __iter__(self) -> Iterator[int]:
        return iter(self._region)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        return self._region == other._region

    def __hash__(self) -> int:
        return hash(self._region)

    def __reduce__(self) -> tuple[object, ...]:
        return Shape, (tuple(self.labels), self.ndslice)

    def __str__(self) -> str:
        return "{" + ",".join(f"{label}={size}" for label, size in self.extent.items()) + "}"

    def __repr__(self) -> str:
        return f"Shape({self.labels}, {self.ndslice!r})"
