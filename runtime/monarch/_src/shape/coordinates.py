"""The coordinates of the ranks of a slice, and short names of sets of ranks. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from monarch._src.shape.extent import Extent

_PROC = re.compile(r"(?P<mesh>[^\[\]]+)\[(?P<point>\w+=\d+(?:, \w+=\d+)*)\]\Z")


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


def name_point(point: Mapping[str, int]) -> str:
    """`hosts=0 gpus=3`; empty for the one rank of a mesh without dims."""
    return " ".join(f"{dim}={index}" for dim, index in point.items())


def name_ranks(points: Iterable[Mapping[str, int]]) -> str:
    """One name for all and only these points, which have the same dims.

    A box of ranks is named by its sides; any other set is named part by part, separated by `; `.
    """
    rows = list(points)
    dims = list(rows[0]) if rows else []
    return _name_table(dims, sorted({tuple(point.values()) for point in rows}))


def name_procs(names: Iterable[str]) -> str:
    """One name for procs of several meshes: `w[gpus=0..3], client` for five names."""
    points: dict[str, list[dict[str, int]]] = {}
    others: list[str] = []
    for name in names:
        match = _PROC.match(name)
        if match is None:
            others.append(name)
            continue
        pairs = (part.split("=") for part in match["point"].split(", "))
        points.setdefault(match["mesh"], []).append({dim: int(index) for dim, index in pairs})
    parts: list[str] = []
    for mesh, found in points.items():
        boxes = [box.replace(" ", ", ") for box in name_ranks(found).split("; ")]
        parts.append(f"{mesh}[{'; '.join(boxes)}]")
    return ", ".join([*parts, *others])


def name_indices(indices: Iterable[int]) -> str:
    """`0..3,6` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in runs)


def _name_table(dims: Sequence[str], table: Sequence[tuple[int, ...]]) -> str:
    if not dims:
        return ""
    sides = [sorted({row[axis] for row in table}) for axis in range(len(dims))]
    volume = 1
    for side in sides:
        volume *= len(side)
    if volume == len(table):
        return " ".join(
            f"{dim}={name_indices(side)}" for dim, side in zip(dims, sides, strict=True)
        )
    # Not a box: the leading dim splits it into parts, and parts that look alike share a name.
    parts: dict[str, list[int]] = {}
    for index in sides[0]:
        rest = [row[1:] for row in table if row[0] == index]
        parts.setdefault(_name_table(dims[1:], rest), []).append(index)
    return "; ".join(
        f"{dims[0]}={name_indices(indices)} {piece}"
        for rest, indices in parts.items()
        for piece in rest.split("; ")
    )
