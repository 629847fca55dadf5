"""Extent and Point: named sizes, and a place in them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.shape import Extent, NDSlice, Point, Region

LABELS = ["hosts", "gpus", "x", "y"]
extents = st.builds(
    lambda labels, sizes: Extent(labels[: len(sizes)], sizes),
    st.permutations(LABELS),
    st.lists(st.integers(1, 4), max_size=4),
)


@given(extents)
def test_points_run_through_all_coordinates_row_major(extent: Extent) -> None:
    places = list(product(*map(range, extent.sizes)))
    points = list(extent.points())
    assert [tuple(point.values()) for point in points] == places
    assert [point.rank for point in points] == list(range(extent.nelements))
    for point in points:
        assert extent.point(**point) == point == extent.point_of_rank(point.rank)


@given(extents)
def test_extents_and_points_survive_pickling(extent: Extent) -> None:
    copy = pickle.loads(pickle.dumps(extent))
    assert copy == extent
    assert hash(copy) == hash(extent)
    point = extent.point_of_rank(extent.nelements - 1)
    assert pickle.loads(pickle.dumps(point)) == point


@given(extents)
def test_the_region_of_an_extent_is_dense_and_made_once(extent: Extent) -> None:
    assert extent.region is extent.region
    assert extent.region.ranks() == range(extent.nelements)
    assert extent.region.extent is extent
    assert extent.region == Region(extent.labels, NDSlice.new_row_major(extent.sizes))


def test_an_extent_is_a_mapping_from_label_to_size() -> None:
    extent = Extent(["hosts", "gpus"], [2, 4])
    assert isinstance(extent, Mapping)
    assert dict(extent) == {"hosts": 2, "gpus": 4}
    assert (extent.labels, extent.sizes, extent.nelements, len(extent)) == (
        ["hosts", "gpus"],
        [2, 4],
        8,
        2,
    )
    assert "gpus" in extent
    assert "cpus" not in extent
    assert extent.get("gpus") == 4
    assert extent.get("cpus") is None
    assert extent.get("cpus", 1) == 1


def test_extents_and_points_print_as_monarch_prints_them() -> None:
    extent = Extent(["hosts", "gpus"], [2, 4])
    assert str(extent) == repr(extent) == "{hosts: 2, gpus: 4}"
    point = extent.point(hosts=1, gpus=1)
    assert str(point) == repr(point) == "{'hosts': 1/2, 'gpus': 1/4}"
    assert repr(Extent([], [])) == repr(Point(0, Extent([], []))) == "{}"


def test_changing_what_an_extent_lists_does_not_change_it() -> None:
    extent = Extent(["gpus"], [4])
    extent.labels.append("hosts")
    extent.sizes[0] = 9
    assert repr(extent) == "{gpus: 4}"


def test_extents_are_equal_by_labels_sizes_and_order_and_never_to_a_dict() -> None:
    extent = Extent(["a", "b"], [2, 3])
    assert extent == Extent(("a", "b"), (2, 3))
    assert extent != Extent(["b", "a"], [3, 2])
    assert extent != Extent(["a", "b"], [2, 4])
    assert extent != {"a": 2, "b": 3}
    assert len({extent, Extent(["a", "b"], [2, 3])}) == 1


def test_without_dims_there_is_one_point() -> None:
    extent = Extent([], [])
    assert extent.nelements == 1
    assert [point.rank for point in extent.points()] == [0]
    assert dict(extent.point()) == {}


def test_an_unknown_label_is_a_value_error_that_lists_the_dims() -> None:
    extent = Extent(["hosts", "gpus"], [2, 4])
    text = r"no dim 'gpu' in \{hosts: 2, gpus: 4\}; it has dims hosts, gpus"
    for read in (
        lambda: extent["gpu"],
        lambda: extent.point(gpu=1),
        lambda: extent.point_of_rank(0)["gpu"],
        lambda: extent.point_of_rank(0).size("gpu"),
    ):
        with pytest.raises(ValueError, match=text):
            read()
    with pytest.raises(ValueError, match="it has no dims"):
        Extent([], [])["gpu"]


@pytest.mark.parametrize(
    ("labels", "sizes", "text"),
    [
        (["a", "a"], [1, 2], "dim 'a' appears twice"),
        (["a"], [0], "dim 'a' has size 0; the smallest size is 1"),
        (["a"], [-3], "dim 'a' has size -3"),
        (["a"], [1, 2], "1 labels but 2 sizes"),
        ([""], [1], "a label is empty"),
    ],
)
def test_bad_extents_are_refused_with_the_reason(
    labels: list[str], sizes: list[int], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Extent(labels, sizes)


@pytest.mark.parametrize(
    ("labels", "sizes", "text"),
    [
        ("ab", [1, 2], r"labels is the string 'ab'; give a sequence, as \['ab'\]"),
        ([1], [1], "label 1 is a int; labels are strings"),
        (["a"], ["2"], "size '2' is a str; sizes are ints"),
        (["a"], [1.5], "size 1.5 is a float"),
    ],
)
def test_labels_and_sizes_of_the_wrong_type_are_type_errors(
    labels: object, sizes: object, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        Extent(labels, sizes)  # type: ignore[arg-type]


def test_a_point_needs_one_coordinate_for_each_dim_within_its_size() -> None:
    extent = Extent(["hosts", "gpus"], [2, 4])
    with pytest.raises(ValueError, match="no coordinate for dim 'gpus'"):
        extent.point(hosts=1)
    with pytest.raises(IndexError, match="gpus=4 is out of range; dim 'gpus' has size 4"):
        extent.point(hosts=1, gpus=4)
    with pytest.raises(IndexError, match="hosts=-1 is out of range"):
        extent.point(hosts=-1, gpus=0)


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_out_of_range_is_no_point(rank: int) -> None:
    extent = Extent(["hosts", "gpus"], [2, 4])
    with pytest.raises(ValueError, match=f"rank {rank} is out of range; .* has ranks 0 to 7"):
        Point(rank, extent)


def test_a_point_is_a_mapping_with_rank_and_sizes() -> None:
    extent = Extent(["hosts", "gpus"], [2, 4])
    point = Point(6, extent)
    assert isinstance(point, Mapping)
    assert dict(point) == {"hosts": 1, "gpus": 2}
    assert (point.rank, point.extent, point.size("gpus"), len(point)) == (6, extent, 4, 2)
    assert "gpus" in point
    assert "cpus" not in point
    assert point.get("gpus") == 2
    assert point.get("cpus", -1) == -1


def test_points_are_equal_by_rank_and_extent_and_never_to_a_dict() -> None:
    extent = Extent(["hosts", "gpus"], [2, 4])
    by_point = {Point(6, extent): "a", Point(5, extent): "b"}
    assert by_point[Point(6, Extent(["hosts", "gpus"], [2, 4]))] == "a"
    assert Point(6, extent) == Point(6, Extent(["hosts", "gpus"], [2, 4]))
    assert Point(6, extent) != Point(5, extent)
    assert Point(6, extent) != Point(6, Extent(["hosts", "cpus"], [2, 4]))
    assert Point(6, extent) != {"hosts": 1, "gpus": 2}
