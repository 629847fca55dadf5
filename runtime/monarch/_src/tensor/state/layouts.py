"""The groups of ranks that combine their values along dims of a mesh. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from monarch._src.shape import Region

Layout: TypeAlias = "dict[int, tuple[int, int, int]]"
"""By rank of the procs: its group, its place in the group, the size of the group."""


def layout_of_dims(region: Region, dims: Sequence[str]) -> Layout:
    """Groups of the ranks that differ in these dims only, in the order of the dims given."""
    sizes = region.sizes
    others = [dim for dim in sizes if dim not in dims]
    count = 1
    for dim in dims:
        count *= sizes[dim]
    groups: dict[tuple[int, ...], int] = {}
    layout: Layout = {}
    for rank, point in zip(region.ranks(), region.extent.points(), strict=True):
        at = dict(point)
        group = groups.setdefault(tuple(at[dim] for dim in others), len(groups))
        place = 0
        for dim in dims:
            place = place * sizes[dim] + at[dim]
        layout[rank] = (group, place, count)
    return layout


def layout_of_ranks(ranks: Sequence[int]) -> Layout:
    """One group of all these ranks."""
    return {rank: (0, place, len(ranks)) for place, rank in enumerate(ranks)}


def moves(source: Region, target: Region) -> dict[int, int]:
    """For each rank of `target`, the rank of `source` whose value it gets.

    Along dims that the source lacks, all ranks of the target get the same value. If the dims do not
    fit, and both have the same ranks in one order, as after `rename`, `split` or `flatten`, each
    rank keeps its own.

    Raises:
        ValueError: the source has a dim that the target lacks, or of another size.
    """
    sizes = target.sizes
    for dim, size in source.sizes.items():
        if sizes.get(dim) != size:
            if list(source.ranks()) == list(target.ranks()):
                return {rank: rank for rank in target.ranks()}
            raise ValueError(
                f"the tensor is on {source.extent} and the mesh has {target.extent}: dim {dim!r} "
                "has to be in both, of one size; take a part of the tensor's mesh with "
                "slice_mesh(...), or rename the dims of the mesh"
            )
    ranks = source.ranks()
    by_point = {
        tuple(dict(point).values()): rank
        for rank, point in zip(ranks, source.extent.points(), strict=True)
    }
    found: dict[int, int] = {}
    for rank, point in zip(target.ranks(), target.extent.points(), strict=True):
        at = dict(point)
        found[rank] = by_point[tuple(at[dim] for dim in source.sizes)]
    return found
