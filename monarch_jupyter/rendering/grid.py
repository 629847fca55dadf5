"""The layout of ranks with named dims: rows and columns. No I/O.

The last dim runs across, every other one down. A mesh of a single dim is broken into rows of
`WRAP`, a large one of `DENSE_WRAP`, a huge one of `DENSEST_WRAP`. The explorer lays out its grid by
the same rule, but puts hundreds of short rows side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from monarch.frontend import name_indices

WRAP = 16
DENSE_WRAP = 32
DENSEST_WRAP = 64
LARGE = 256
LARGEST = 1024


@dataclass(frozen=True)
class GridRow:
    """One row: its label (empty where rows needn't be told apart) and its ranks."""

    label: str
    ranks: range


@dataclass(frozen=True)
class Grid:
    """The rows of a mesh, and the labels of their columns (empty where rows don't share them)."""

    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]


def grid_of(sizes: Mapping[str, int], indices: Mapping[str, Sequence[int]] | None = None) -> Grid:
    """The grid of a mesh with these dims; ranks count row-major, as everywhere.

    `indices`: for each dim, the number to show for each of its indices, if it is a slice.
    """
    shown = indices or {dim: range(size) for dim, size in sizes.items()}
    dims = list(sizes)
    if not dims:
        return Grid((), (GridRow("", range(1)),))
    across, width = dims[-1], sizes[dims[-1]]
    if len(dims) == 1:
        wrap = DENSEST_WRAP if width > LARGEST else DENSE_WRAP if width > LARGE else WRAP
        if width <= wrap:
            columns = tuple(f"{across}={i}" for i in shown[across])
            return Grid(columns, (GridRow("", range(width)),))
        starts = range(0, width, wrap)
        parts = [range(start, min(start + wrap, width)) for start in starts]
        named = [(name_indices(shown[across][i] for i in part), part) for part in parts]
        return Grid((), tuple(GridRow(f"{across}={name}", part) for name, part in named))
    down = dims[:-1]
    places = product(*(shown[dim] for dim in down))
    rows = [
        GridRow(
            " ".join(f"{dim}={at}" for dim, at in zip(down, place, strict=True)),
            range(number * width, (number + 1) * width),
        )
        for number, place in enumerate(places)
    ]
    return Grid(tuple(f"{across}={i}" for i in shown[across]), tuple(rows))
