"""MeshTrait: the operations of every mesh, written once over its Region. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import TypeVar

from monarch._src.shape.extent import Extent, Region, Selector
from monarch._src.shape.labels import dims_text

_Mesh = TypeVar("_Mesh", bound="MeshTrait")


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
