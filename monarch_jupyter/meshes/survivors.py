"""The slices of a mesh that leave failed ranks out, or have them only. No I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from itertools import pairwise, product


def surviving_slices(
    sizes: Mapping[str, int], failed: Collection[Mapping[str, int]]
) -> list[dict[str, range]]:
    """Slices that together have every rank but the failed ones, each rank once.

    Each gives the range of some dims. The largest is first; of equal ones the first, by dim and
    then by index.
    """
    found = [{dim: one[dim] for dim in sizes if dim in one} for one in _slices(dict(sizes), failed)]
    return sorted(found, key=lambda one: -_count(sizes, one))


def slices_of(
    sizes: Mapping[str, int], chosen: Collection[Mapping[str, int]]
) -> list[dict[str, range]]:
    """Slices that together have exactly these ranks; each gives a range, or one index, of dims."""
    wanted = [dict(point) for point in chosen]
    points = (dict(zip(sizes, at, strict=True)) for at in product(*map(range, sizes.values())))
    others = [point for point in points if point not in wanted]
    if not others:
        return [{dim: range(size) for dim, size in sizes.items()}]
    return surviving_slices(sizes, others)


def selection_text(dims: Mapping[str, range]) -> str:
    """`gpus=0, hosts=1:3`, as in `workers[gpus=0, hosts=1:3]`."""
    return ", ".join(
        f"{dim}={ranks.start}" if len(ranks) == 1 else f"{dim}={ranks.start}:{ranks.stop}"
        for dim, ranks in dims.items()
    )


def _slices(
    sizes: Mapping[str, int], failed: Collection[Mapping[str, int]]
) -> list[dict[str, range]]:
    if not failed:
        return [{}]
    if not sizes:
        return []
    dim = max(sizes, key=lambda dim: _largest_part(sizes, dim, failed))
    found = [{dim: ranks} for ranks in _gaps(sizes, dim, failed)]
    rest = {name: size for name, size in sizes.items() if name != dim}
    for at in sorted({point[dim] for point in failed}):
        within = [point for point in failed if point[dim] == at]
        found += [{dim: range(at, at + 1), **one} for one in _slices(rest, within)]
    return found


def _gaps(sizes: Mapping[str, int], dim: str, failed: Collection[Mapping[str, int]]) -> list[range]:
    """The ranges of a dim without any failed point."""
    bounds = [-1, *sorted({point[dim] for point in failed}), sizes[dim]]
    return [range(before + 1, after) for before, after in pairwise(bounds) if after - before > 1]


def _largest_part(
    sizes: Mapping[str, int], dim: str, failed: Collection[Mapping[str, int]]
) -> float:
    """The part of all ranks that is in the largest range of a dim without any failed point."""
    return max(map(len, _gaps(sizes, dim, failed)), default=0) / sizes[dim]


def _count(sizes: Mapping[str, int], dims: Mapping[str, range]) -> int:
    return math.prod(len(dims.get(dim, range(size))) for dim, size in sizes.items())
