"""The coordinates of slices are those of the mesh that they were cut from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.shape import Extent, Region
from monarch._src.shape.coordinates import Coordinates, coordinates_of

GRID = Extent(("hosts", "racks", "gpus"), (3, 2, 4))


def coordinates(region: Region) -> Coordinates:
    return coordinates_of(region.sizes, region.ranks(), GRID)


@st.composite
def slices(draw: st.DrawFn) -> Region:
    region = GRID.region
    for dim, size in GRID.items():
        kind = draw(st.sampled_from(["whole", "index", "range"]))
        if kind == "index":
            region = region.slice(**{dim: draw(st.integers(0, size - 1))})
        elif kind == "range":
            start = draw(st.integers(0, size - 1))
            stop, step = draw(st.integers(start + 1, size)), draw(st.integers(1, 3))
            region = region.slice(**{dim: slice(start, stop, step)})
    return region


@given(slices())
def test_each_position_of_a_slice_is_at_the_point_of_its_rank(region: Region) -> None:
    found = coordinates(region)
    points = [found.point(at) for at in range(len(region))]
    assert points == [dict(GRID.point_of_rank(rank)) for rank in region.ranks()]
    assert [list(point) for point in points] == [["hosts", "racks", "gpus"]] * len(region)


@given(slices())
def test_indices_are_by_dim_of_the_slice_and_dropped_dims_are_fixed(region: Region) -> None:
    found = coordinates(region)
    assert {dim: len(indices) for dim, indices in found.indices.items()} == region.sizes
    assert set(found.fixed) == set(GRID) - set(region.sizes)


def test_a_mesh_with_other_dims_has_its_own_coordinates() -> None:
    for region in (
        GRID.region.flatten("all"),
        GRID.region.rename(gpus="tp").slice(hosts=1),
        GRID.region.flatten("gpus"),
        GRID.region.flatten("all").split(all=("gpus", "hosts"), hosts=3),
    ):
        assert coordinates(region) == Coordinates.own(region.sizes)
    assert Coordinates.own({"a": 2, "b": 2}).point(2) == {"a": 1, "b": 0}
