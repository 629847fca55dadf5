"""Where the ranks of a slice are in the mesh that it was cut from. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from monarch._src.shape.extent import Extent


@dataclass(frozen=True)
class Coordinates:
    """The coordinates to show for each position of a mesh or slice.

    `indices` has, for each dim of the slice, in order, the index in the spawned mesh of each of its
    indices; `fixed` the index of each dim that the slice has dropped. `dims` are all of them, in
    the order of the spawned mesh. A mesh with dims of its own, such as one that was split, has its
    own coordinates: they cannot be mistaken for others.
    """

    dims: tuple[str, ...]
    indices: Mapping[str, Sequence[int]]
    fixed: Mapping[str, int]

    @classmethod
    def own(cls, sizes: Mapping[str, int]) -> Coordinates:
        """Those of a mesh that is no slice."""
        return cls(tuple(sizes), {dim: range(size) for dim, size in sizes.items()}, {})

    def point(self, position: int) -> dict[str, int]:
        """The coordinates at a position, which counts row-major in the slice."""
        point = dict(self.fixed)
        for dim, indices in reversed(list(self.indices.items())):
            position, at = divmod(position, len(indices))
            point[dim] = indices[at]
        return {dim: point[dim] for dim in self.dims}


def coordinates_of(sizes: Mapping[str, int], ranks: Sequence[int], spawned: Extent) -> Coordinates:
    """The coordinates of a slice with these sizes.

    `ranks`: the ranks of the spawned mesh at its positions.
    """
    own = Coordinates.own(sizes)
    labels = tuple(spawned.labels)
    if not set(sizes) <= set(labels) or not ranks:
        return own
    points = [spawned.point_of_rank(rank) for rank in ranks]
    fixed = {dim: points[0][dim] for dim in labels if dim not in sizes}
    indices: dict[str, Sequence[int]] = {}
    stride = len(ranks)
    for dim, size in sizes.items():
        stride //= size
        indices[dim] = tuple(points[at * stride][dim] for at in range(size))
    # After `split` or `flatten` a dim may have the name of a spawned one and other indices.
    expected = product(*indices.values())
    for point, at in zip(points, expected, strict=True):
        if any(point[dim] != index for dim, index in fixed.items()):
            return own
        if any(point[dim] != index for dim, index in zip(sizes, at, strict=True)):
            return own
    return Coordinates(labels, indices, fixed)
