"""The operations of every mesh, written once over its Region. No I/O.

MeshTrait selects by dims; IndexedMesh selects by position too, as an array of numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from operator import index as as_int
from typing import Any, TypeAlias, TypeVar, cast

from monarch._src.shape.extent import Extent, Region, Selector, dims_text

_Mesh = TypeVar("_Mesh", bound="MeshTrait")
PlaceIndex: TypeAlias = "int | slice[Any, Any, Any] | Sequence[int]"
"""The places along one dim."""
Index: TypeAlias = "PlaceIndex | tuple[Any, ...]"
"""`PlaceIndex` of the first dim, or a tuple of them, in which `...` stands for whole dims."""

_Indexed = TypeVar("_Indexed", bound="IndexedMesh")


class MeshTrait(ABC):
    """The operations that HostMesh, ProcMesh, ActorMesh and ValueMesh share.

    A subclass sets ``_region`` before any of these is used, and implements ``_new_with_region`` to
    make a view of itself. Views share the processes or values of the mesh; nothing is copied or
    sent. Errors are those of `Region`.
    """

    __slots__ = ()

    _region: Region

    @abstractmethod
    def _new_with_region(self: _Mesh, region: Region) -> _Mesh:
        """This mesh, seen through another region of the same ranks."""

    @property
    def extent(self) -> Extent:
        """The dims and their sizes, printed ``{hosts: 2, gpus: 4}``."""
        return self._region.extent

    @property
    def _labels(self) -> list[str]:
        """The names of the dims, where Monarch's own SPMD programs read them."""
        return self._region.labels

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dim, in order."""
        return self._region.sizes

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """The size of a dim, the product of several, or (without ``dim``) the number of ranks.

        KeyError for an unknown dim.
        """
        if dim is None:
            return len(self._region)
        extent = self._region.extent
        names = [dim] if isinstance(dim, str) else dim
        for name in names:
            if name not in extent:
                raise KeyError(f"size: no dim {name!r}; there are {dims_text(extent)}")
        return prod(extent[name] for name in names)

    def slice(self: _Mesh, **dims: Selector) -> _Mesh:
        """A part of the mesh. An int keeps one coordinate and drops the dim, a slice keeps the dim.

        TypeError for an unknown dim; IndexError for an int that is negative or out of range;
        ValueError for a slice that selects nothing or steps backwards.
        """
        return self._new_with_region(self._region.slice(**dims))

    def split(self: _Mesh, **dims: Sequence[str] | int) -> _Mesh:
        """Dims split into several, as in ``split(host=("dp", "pp"), pp=2)``.

        ValueError if the sizes do not divide; see `Region.split`.
        """
        return self._new_with_region(self._region.split(**dims))

    def flatten(self: _Mesh, name: str) -> _Mesh:
        """All dims as one. ValueError if the ranks are not at equal distances."""
        return self._new_with_region(self._region.flatten(name))

    def rename(self: _Mesh, **names: str) -> _Mesh:
        """Dims renamed, as in ``rename(old="new")``.

        ValueError if a dim is unknown or a name would appear twice.
        """
        return self._new_with_region(self._region.rename(**names))

    def __len__(self) -> int:
        return len(self._region)


class IndexedMesh(MeshTrait):
    """A mesh whose parts are also had by position: `procs[0]`, `procs[-2:]`, `procs[:, [0, 2]]`."""

    __slots__ = ()

    def __getitem__(self: _Indexed, index: Index) -> _Indexed:
        """The part at these places, dim by dim, in the order of the dims.

        An int keeps one place and drops the dim; a negative one counts from the end. A slice keeps
        the dim, and so does a list of places, which have to be in order and at equal distances.

        Raises:
            TypeError: an index that is no int, slice or list of ints. IndexError: there is no such
                place, or no such dim. ValueError: it selects nothing, or no regular part.
        """
        return self.slice(**selectors(index, self.extent))

    def __iter__(self: _Indexed) -> Iterator[_Indexed]:
        """The parts at each place of the first dim.

        Raises:
            TypeError: the mesh has no dim.
        """
        if not self.extent:
            raise TypeError("this mesh has one rank and no dim, so it has no parts to iterate over")
        return map(self.__getitem__, range(self.extent.sizes[0]))


def selectors(index: Index, extent: Extent) -> dict[str, Selector]:
    """The arguments of `slice` for an index by position. Errors as of `IndexedMesh`."""
    given: list[Any] = list(index) if isinstance(index, tuple) else [index]
    gaps = [at for at, one in enumerate(given) if one is Ellipsis]
    count, labels = len(given) - len(gaps), extent.labels
    if len(gaps) > 1:
        raise IndexError("`...` stands once in an index")
    if count > len(labels):
        raise IndexError(f"{count} indices for a mesh of {len(labels)} dims: {extent!r}")
    if gaps:
        at = gaps[0]
        given[at : at + 1] = [slice(None)] * (len(labels) - count)
    chosen = zip(labels, extent.sizes, given, strict=False)  # what is not given stays whole
    return {label: _selector(one, label, size) for label, size, one in chosen}


def _selector(index: Any, label: str, size: int) -> Selector:
    if isinstance(index, slice):
        return slice(*index.indices(size))
    if isinstance(index, Sequence) and not isinstance(index, str):
        places = cast("Sequence[object]", index)
        return _regular([_place(one, label, size) for one in places], label)
    return _place(index, label, size)


def _place(index: Any, label: str, size: int) -> int:
    try:
        place = as_int(index)
    except TypeError:
        raise TypeError(
            f"a mesh is indexed by numbers, slices and lists of numbers, not by {index!r}; dims by "
            f"name are given to slice({label}=...)"
        ) from None
    if not -size <= place < size:
        raise IndexError(f"{label} has no place {place}; there are {size}, counted from 0")
    return place % size


def _regular(places: list[int], label: str) -> Selector:
    if not places:
        raise ValueError(f"the list of places of {label} is empty; give one at least")
    step = places[1] - places[0] if len(places) > 1 else 1
    if step < 1 or places != list(range(places[0], places[-1] + 1, step)):
        raise ValueError(
            f"the places {places} of {label} are not in order and at equal distances, as in a "
            "part of a mesh; index the mesh for each regular part"
        )
    return slice(places[0], places[-1] + 1, step)
