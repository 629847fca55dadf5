"""The largest slice of a mesh that leaves failed ranks out. No I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from itertools import pairwise


def surviving_slice(
    sizes: Mapping[str, int], failed: Collection[Mapping[str, int]]
) -> tuple[str, range] | None:
    """A dim and a range of it without any of the failed points; None if none is left.

    Of all such slices the largest; of equal ones the first, by dim and then by index.
    """
    best: tuple[str, range] | None = None
    most = 0
    for dim, size in sizes.items():
        gone = {point[dim] for point in failed}
        bounds = [-1, *sorted(gone), size]
        for before, after in pairwise(bounds):
            ranks = (after - before - 1) * (math.prod(sizes.values()) // size)
            if ranks > most:
                best, most = (dim, range(before + 1, after)), ranks
    return best
