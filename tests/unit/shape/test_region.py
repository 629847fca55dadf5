"""Region: named views of global ranks, and what the operations refuse."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from monarch._src.shape import Extent, NDSlice, Region


@pytest.fixture
def region() -> Region:
    return Extent(["hosts", "gpus"], [2, 4]).region


def test_the_ranks_of_a_dense_region_are_a_range(region: Region) -> None:
    assert region.ranks() == range(8)
    assert region.slice(hosts=1).ranks() == range(4, 8)
    assert region.slice(gpus=2).ranks() == range(2, 10, 4)
    assert region.slice(gpus=slice(0, None, 2)).ranks() == range(0, 8, 2)
    assert region.slice(gpus=slice(1, 3)).ranks() == (1, 2, 5, 6)


def test_an_int_drops_the_dim_and_a_slice_keeps_it(region: Region) -> None:
    assert region.slice(gpus=1).sizes == {"hosts": 2}
    assert region.slice(gpus=slice(1, 2)).sizes == {"hosts": 2, "gpus": 1}


def test_a_fully_sliced_region_has_no_dims_and_one_rank(region: Region) -> None:
    one = region.slice(hosts=1, gpus=2)
    assert (one.labels, one.sizes, len(one), list(one.ranks())) == ([], {}, 1, [6])
    assert one.global_rank(0) == 6
    assert one.position(6) == 0
    assert dict(one.point_of_base_rank(6)) == {}


def test_slicing_by_nothing_gives_the_region_itself(region: Region) -> None:
    assert region.slice() is region


def test_slice_bounds_are_clamped_and_count_from_the_end_as_in_python(region: Region) -> None:
    assert region.slice(gpus=slice(2, 100)).sizes == {"hosts": 2, "gpus": 2}
    assert region.slice(hosts=0, gpus=slice(-2, None)).ranks() == range(2, 4)
    assert region.slice(hosts=0, gpus=slice(None, -1)).ranks() == range(3)


def test_anything_that_works_as_an_index_selects(region: Region) -> None:
    class Three:
        def __index__(self) -> int:
            return 3

    three: Any = Three()
    assert region.slice(hosts=0, gpus=three).ranks() == range(3, 4)


@pytest.mark.parametrize(
    ("selectors", "error", "text"),
    [
        ({"gpu": 0}, TypeError, "slice: no dim 'gpu'; there are dims hosts, gpus"),
        ({"gpus": 4}, IndexError, "gpus=4 is out of range; dim 'gpus' has size 4, so 0 to 3"),
        ({"gpus": -1}, IndexError, "gpus=-1 is out of range; dim 'gpus' has size 4"),
        ({"gpus": slice(3, 3)}, ValueError, "gpus=3:3 selects nothing; dim 'gpus' has size 4"),
        ({"gpus": slice(5, 9)}, ValueError, "gpus=5:9 selects nothing"),
        (
            {"gpus": slice(None, None, -1)},
            ValueError,
            "gpus=::-1 has step -1, .* step of 1 or more",
        ),
        ({"gpus": slice(None, None, 0)}, ValueError, "gpus=::0 has step 0"),
        ({"gpus": 1.5}, TypeError, "gpus=1.5 is a float; give an int or a slice"),
        ({"gpus": [0, 2]}, TypeError, r"gpus=\[0, 2\] is a list; give an int or a slice"),
        ({"gpus": slice("a", None)}, TypeError, "gpus='a': has a bound that is not an int"),
        ({"gpus": slice(None, None, 1.5)}, TypeError, "gpus=::1.5 has a bound that is not an int"),
    ],
)
def test_slice_refuses_with_dim_value_and_remedy(
    region: Region, selectors: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        region.slice(**selectors)


def test_an_unknown_dim_is_reported_even_where_another_selector_is_wrong(region: Region) -> None:
    with pytest.raises(TypeError, match="no dim 'gpu'"):
        region.slice(gpus=9, gpu=0)


def test_slicing_a_region_without_dims_says_that_there_are_none() -> None:
    with pytest.raises(TypeError, match="no dim 'gpus'; there are no dims"):
        Extent([], []).region.slice(gpus=0)


def test_split_computes_the_size_that_is_left_out(region: Region) -> None:
    expected = {"hosts": 2, "dp": 2, "pp": 2}
    assert region.split(gpus=("dp", "pp"), pp=2).sizes == expected
    assert region.split(gpus=["dp", "pp"], dp=2).sizes == expected
    assert region.split(gpus=("dp", "pp"), dp=2, pp=2).sizes == expected


def test_split_numbers_the_new_dims_row_major(region: Region) -> None:
    split = region.split(gpus=("dp", "pp"), pp=2)
    assert split.ranks() == range(8)
    assert split.slice(pp=1).ranks() == range(1, 9, 2)
    assert split.slice(dp=1, hosts=0).ranks() == range(2, 4)


def test_split_can_split_several_dims_reuse_the_name_and_rename(region: Region) -> None:
    split = region.split(hosts=("a", "b"), gpus=("c", "gpus"), b=2, c=2)
    assert split.sizes == {"a": 1, "b": 2, "c": 2, "gpus": 2}
    assert region.split(gpus=("devices",)).sizes == {"hosts": 2, "devices": 4}
    assert region.split(hosts=("gpus",), gpus=("hosts",)).sizes == {"gpus": 2, "hosts": 4}
    assert region.split() is region


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"gpu": ("a", "b"), "a": 2}, "no dim 'gpu' to split; there are dims hosts, gpus"),
        (
            {"gpus": ("a", "b"), "a": 3},
            r"'gpus' of size 4 can't be split into a, b of sizes 3 x \?",
        ),
        ({"gpus": ("a", "b"), "a": 2, "b": 3}, "of sizes 2 x 3; their product must be 4"),
        ({"gpus": ("a", "b"), "a": 2, "b": 1}, "of sizes 2 x 1; their product must be 4"),
        ({"gpus": ("a", "b")}, "sizes of a, b are left out, and only one can be computed; .* b=4"),
        ({"gpus": ("hosts", "b"), "b": 2}, "dim 'hosts' appears twice"),
        ({"gpus": ("a", "a"), "a": 2}, "dim 'a' appears twice"),
        ({"gpus": ("a", "b"), "a": 2, "c": 2}, "c=2 sizes a dim that no split names"),
        ({"gpus": 4}, "gpus=4 sizes a dim that no split names"),
        ({"gpus": "ab"}, r"gpus='ab' is a string; name the new dims in a sequence"),
        ({"gpus": ()}, r"gpus=\(\) names no dims"),
        ({"gpus": ("a", "b"), "a": 0}, "a=0 is not a size; the smallest is 1"),
        ({"gpus": ("a", "b"), "a": -2}, "a=-2 is not a size"),
    ],
)
def test_split_refuses_with_the_reason(
    region: Region, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        region.split(**arguments)


def test_a_size_of_the_wrong_type_is_a_type_error(region: Region) -> None:
    with pytest.raises(
        TypeError, match=r"a=2.0 is a float; give new dims as a sequence, or a size"
    ):
        region.split(gpus=("a", "b"), a=2.0)  # type: ignore[arg-type]


def test_flatten_makes_one_dim_of_all(region: Region) -> None:
    assert region.flatten("ranks").sizes == {"ranks": 8}
    assert region.slice(hosts=1).flatten("gpus").ranks() == range(4, 8)
    assert region.slice(hosts=1, gpus=1).flatten("one").sizes == {"one": 1}
    assert region.slice(hosts=1, gpus=1).flatten("one").ranks() == range(5, 6)


def test_flatten_takes_whatever_one_stride_can_say(region: Region) -> None:
    every_other = region.slice(gpus=slice(0, None, 2)).flatten("x")
    assert (every_other.sizes, every_other.ranks()) == ({"x": 4}, range(0, 8, 2))


def test_flatten_refuses_uneven_ranks_with_the_remedy(region: Region) -> None:
    with pytest.raises(ValueError, match=r"not at equal distances\. Flatten before slicing"):
        region.slice(gpus=slice(0, 2)).flatten("x")


@pytest.mark.parametrize("name", ["", 3])
def test_flatten_needs_a_name(region: Region, name: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="flatten: "):
        region.flatten(name)


def test_rename_keeps_ranks_and_can_exchange_names(region: Region) -> None:
    assert region.rename(gpus="devices").sizes == {"hosts": 2, "devices": 4}
    assert region.rename(gpus="hosts", hosts="gpus").sizes == {"gpus": 2, "hosts": 4}
    assert region.rename(gpus="gpus") == region
    assert region.rename(gpus="devices").ndslice == region.ndslice


def test_rename_refuses_collisions_and_unknown_dims(region: Region) -> None:
    with pytest.raises(ValueError, match="rename: dim 'gpus' appears twice"):
        region.rename(hosts="gpus")
    with pytest.raises(ValueError, match="no dim 'gpu' to rename; there are dims hosts, gpus"):
        region.rename(gpu="x")
    with pytest.raises(TypeError, match="rename: label 3 is a int"):
        region.rename(gpus=3)  # type: ignore[arg-type]


def test_positions_and_ranks_out_of_the_region_are_refused(region: Region) -> None:
    part = region.slice(hosts=1)
    for position in (-1, 4):
        with pytest.raises(IndexError, match=f"position {position} is out of range; .* has 4"):
            part.global_rank(position)
    with pytest.raises(ValueError, match="rank 3 is not in"):
        part.position(3)
    with pytest.raises(ValueError, match="rank 3 is not in"):
        part.point_of_base_rank(3)
    assert 3 not in part
    assert 4 in part


def test_labels_must_match_the_axes() -> None:
    with pytest.raises(ValueError, match="1 labels for the 2 axes"):
        Region(["a"], NDSlice.new_row_major([2, 2]))
    with pytest.raises(ValueError, match="dim 'a' appears twice"):
        Region(["a", "a"], NDSlice.new_row_major([2, 2]))


def test_regions_are_values(region: Region) -> None:
    part = region.slice(gpus=slice(1, None, 2))
    copy = pickle.loads(pickle.dumps(part))
    assert copy == part
    assert hash(copy) == hash(part)
    assert part != region
    assert part != part.rename(gpus="x")
    assert part != "region"
    assert repr(part) == "Region({hosts: 2, gpus: 2}, offset=1, strides=[4, 2])"


def test_the_extent_of_a_region_is_made_once(region: Region) -> None:
    part = region.slice(hosts=0)
    assert part.extent is part.extent
    assert part.extent == Extent(["gpus"], [4])
