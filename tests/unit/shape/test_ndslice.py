"""NDSlice: ranks as an offset, sizes and strides."""

from __future__ import annotations

import pickle
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.shape import NDSlice


@st.composite
def nested(draw: st.DrawFn) -> NDSlice:
    """Any slice that is allowed: nested strides in any order of axes, with gaps."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=4))
    strides = [0] * len(sizes)
    span = 0
    for axis in draw(st.permutations(range(len(sizes)))):
        strides[axis] = span + 1 + draw(st.integers(0, 3))
        span += (sizes[axis] - 1) * strides[axis]
    return NDSlice(offset=draw(st.integers(0, 20)), sizes=sizes, strides=strides)


def model(ndslice: NDSlice) -> dict[tuple[int, ...], int]:
    """The definition: the rank at every tuple of coordinates, in row-major order."""
    return {
        at: ndslice.offset + sum(i * stride for i, stride in zip(at, ndslice.strides, strict=True))
        for at in product(*map(range, ndslice.sizes))
    }


@given(nested())
def test_ranks_positions_and_coordinates_agree_with_the_definition(ndslice: NDSlice) -> None:
    expected = model(ndslice)
    assert list(ndslice) == list(ndslice.ranks()) == list(expected.values())
    assert len(ndslice) == len(expected)
    for position, (at, rank) in enumerate(expected.items()):
        assert ndslice[position] == rank
        assert ndslice.nditem(at) == rank
        assert ndslice.coordinates(rank) == list(at)
        assert ndslice.index(rank) == position


@given(nested())
def test_it_contains_its_ranks_and_no_others(ndslice: NDSlice) -> None:
    ranks = set(model(ndslice).values())
    for rank in range(-2, max(ranks) + 3):
        assert (rank in ndslice) == (rank in ranks)
        if rank not in ranks:
            with pytest.raises(ValueError, match=f"rank {rank} is not in NDSlice"):
                ndslice.index(rank)
            with pytest.raises(ValueError, match=f"rank {rank} is not in NDSlice"):
                ndslice.coordinates(rank)


@given(
    sizes=st.lists(st.integers(1, 4), max_size=3),
    strides=st.lists(st.integers(1, 12), max_size=3),
)
def test_whatever_is_accepted_meets_no_rank_twice(sizes: list[int], strides: list[int]) -> None:
    count = min(len(sizes), len(strides))
    try:
        ndslice = NDSlice(offset=0, sizes=sizes[:count], strides=strides[:count])
    except ValueError:
        return  # what is refused, and why, are the tests below
    assert len(set(ndslice)) == len(ndslice)
    assert [ndslice.nditem(ndslice.coordinates(rank)) for rank in ndslice] == list(ndslice)


@given(nested())
def test_flattening_keeps_ranks_and_order_or_refuses_uneven_distances(ndslice: NDSlice) -> None:
    ranks = list(ndslice)
    distances = {after - before for before, after in pairwise(ranks)}
    even = len(distances) <= 1 and all(distance > 0 for distance in distances)
    assert isinstance(ndslice.ranks(), range) == even
    if even:
        assert list(ndslice.flatten()) == ranks
        assert ndslice.flatten().ndim == 1
    else:
        with pytest.raises(ValueError, match="not at equal distances"):
            ndslice.flatten()


@given(nested())
def test_a_slice_survives_pickling_and_is_equal_to_its_copy(ndslice: NDSlice) -> None:
    copy = pickle.loads(pickle.dumps(ndslice))
    assert copy == ndslice
    assert hash(copy) == hash(ndslice)
    assert eval(repr(ndslice)) == ndslice


def test_row_major_slices_are_dense() -> None:
    ndslice = NDSlice.new_row_major([2, 3, 4], offset=5)
    assert ndslice == NDSlice(offset=5, sizes=[2, 3, 4], strides=[12, 4, 1])
    assert ndslice.ranks() == range(5, 29)
    assert ndslice.ndim == 3


def test_without_axes_it_is_one_rank() -> None:
    ndslice = NDSlice(offset=7, sizes=[], strides=[])
    assert list(ndslice) == [7]
    assert ndslice.nditem([]) == 7
    assert ndslice.coordinates(7) == []
    assert list(ndslice.flatten()) == [7]


def test_what_is_no_number_is_in_no_slice() -> None:
    assert "0" not in NDSlice.new_row_major([2])


def test_positions_can_be_sliced() -> None:
    assert NDSlice(offset=1, sizes=[5], strides=[2])[1:4:2] == (3, 7)


def test_slices_differ_by_offset_sizes_or_strides() -> None:
    base = NDSlice(offset=0, sizes=[2, 2], strides=[2, 1])
    assert base != NDSlice(offset=1, sizes=[2, 2], strides=[2, 1])
    assert base != NDSlice(offset=0, sizes=[2, 1], strides=[2, 1])
    assert base != NDSlice(offset=0, sizes=[2, 2], strides=[4, 1])
    assert base != (0, (2, 2), (2, 1))


def test_axes_of_size_one_may_have_any_stride() -> None:
    assert list(NDSlice(offset=0, sizes=[1, 3], strides=[1, 1])) == [0, 1, 2]


@pytest.mark.parametrize(
    ("offset", "sizes", "strides", "text"),
    [
        (0, [2], [1, 1], "1 sizes but 2 strides"),
        (-1, [2], [1], "offset -1 is negative"),
        (0, [2, 0], [1, 1], "size 0 of axis 1 is not positive; the smallest is 1"),
        (0, [2], [0], "stride 0 of axis 0 is not positive"),
        (0, [2, 2], [1, 1], "strides \\[1, 1\\] overlap"),
        (0, [2, 3], [2, 1], "stride 2 of axis 0 must be larger than 2"),
    ],
)
def test_bad_slices_are_refused_with_the_reason(
    offset: int, sizes: list[int], strides: list[int], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        NDSlice(offset=offset, sizes=sizes, strides=strides)


def test_a_bad_size_of_a_row_major_slice_is_named() -> None:
    with pytest.raises(ValueError, match="size 0 of axis 1"):
        NDSlice.new_row_major([2, 0, 3])


def test_sizes_that_are_no_ints_are_a_type_error() -> None:
    with pytest.raises(TypeError):
        NDSlice.new_row_major([2.5])  # type: ignore[list-item]


@pytest.mark.parametrize("position", [-1, 4])
def test_positions_out_of_range_are_index_errors(position: int) -> None:
    with pytest.raises(IndexError, match=f"no position {position}; there are 4"):
        NDSlice.new_row_major([4])[position]


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ([2, 0], "coordinate 2 of axis 0 is out of range; its size is 2"),
        ([0, -1], "coordinate -1 of axis 1"),
        ([0], "1 coordinates for 2 axes"),
    ],
)
def test_coordinates_out_of_range_are_index_errors(at: list[int], text: str) -> None:
    with pytest.raises(IndexError, match=text):
        NDSlice.new_row_major([2, 2]).nditem(at)


def test_views_of_axes_check_their_arguments() -> None:
    ndslice = NDSlice.new_row_major([4])
    with pytest.raises(IndexError, match="coordinate 4 of axis 0"):
        ndslice.drop(0, 4)
    with pytest.raises(ValueError, match="not an ascending part"):
        ndslice.take(0, range(3, 5))
    with pytest.raises(ValueError, match="not an ascending part"):
        ndslice.take(0, range(3, 0, -1))
    with pytest.raises(ValueError, match="can't be split into \\[3\\]"):
        ndslice.split(0, [3])
