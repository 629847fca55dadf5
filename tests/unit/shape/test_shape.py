"""Shape: Monarch's name for labels and an NDSlice."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from monarch._src.shape import Extent, NDSlice, Region, Shape


@pytest.fixture
def shape() -> Shape:
    return Shape(["hosts", "gpus"], NDSlice.new_row_major([2, 4]))


def test_at_drops_a_dim_and_select_keeps_it(shape: Shape) -> None:
    assert shape.at("hosts", 1) == Shape(["gpus"], NDSlice(offset=4, sizes=[4], strides=[1]))
    assert shape.select("gpus", slice(1, None, 2)) == Shape(
        ["hosts", "gpus"], NDSlice(offset=1, sizes=[2, 2], strides=[4, 2])
    )


def test_ranks_and_coordinates_are_those_of_the_slice(shape: Shape) -> None:
    assert list(shape) == list(shape.ranks()) == list(range(8))
    assert len(shape) == 8
    assert shape.coordinates(6) == {"hosts": 1, "gpus": 2}
    with pytest.raises(ValueError, match="rank 9 is not in"):
        shape.coordinates(9)


def test_a_shape_is_a_region_with_other_names(shape: Shape) -> None:
    assert shape.region == Region(shape.labels, shape.ndslice)
    assert Shape.of_region(shape.region) == shape
    assert shape.extent == Extent(["hosts", "gpus"], [2, 4])


def test_unity_is_the_single_rank_zero() -> None:
    assert Shape.unity().labels == []
    assert list(Shape.unity().ranks()) == [0]
    assert str(Shape.unity()) == "{}"


@pytest.mark.parametrize(
    ("read", "error", "text"),
    [
        (lambda s: s.at("gpu", 0), ValueError, "no dim 'gpu' in {hosts=2,gpus=4}; it has dims"),
        (lambda s: s.at("gpus", 4), ValueError, "gpus=4 is out of range"),
        (lambda s: s.at("gpus", slice(0, 1)), TypeError, r"is not an int; use select\(\)"),
        (lambda s: s.select("gpu", slice(1)), ValueError, "no dim 'gpu'"),
        (lambda s: s.select("gpus", slice(2, 2)), ValueError, "selects nothing"),
        (lambda s: s.select("gpus", 1), TypeError, r"1 is not a slice; use at\(\)"),
    ],
)
def test_what_is_not_there_is_refused(
    shape: Shape, read: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        read(shape)


def test_labels_must_match_the_axes() -> None:
    with pytest.raises(ValueError, match="1 labels for the 2 axes"):
        Shape(["a"], NDSlice.new_row_major([2, 4]))


def test_shapes_are_values(shape: Shape) -> None:
    assert pickle.loads(pickle.dumps(shape)) == shape
    assert len({shape, Shape(["hosts", "gpus"], NDSlice.new_row_major([2, 4]))}) == 1
    assert shape != shape.at("hosts", 0)
    assert shape != "shape"
    assert str(shape) == "{hosts=2,gpus=4}"
    assert eval(repr(shape)) == shape
