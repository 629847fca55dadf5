"""Short, exact names of sets of ranks: `gpus=0..7`, `hosts=0..1 gpus=3`. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


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
