"""The slices of a mesh that leave failed ranks out."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_jupyter.meshes.survivors import selection_text, slices_of, surviving_slices


@pytest.mark.parametrize(
    ("sizes", "failed", "left"),
    [
        ({"gpus": 4}, [{"gpus": 0}], ["gpus=1:4"]),
        ({"gpus": 4}, [{"gpus": 1}], ["gpus=2:4", "gpus=0"]),
        ({"gpus": 3}, [{"gpus": 1}], ["gpus=0", "gpus=2"]),
        ({"gpus": 2}, [{"gpus": 0}, {"gpus": 1}], []),
        ({"hosts": 2, "gpus": 4}, [{"hosts": 1, "gpus": 3}], ["gpus=0:3", "hosts=0, gpus=3"]),
        ({"hosts": 2, "gpus": 2}, [{"hosts": 0, "gpus": 0}], ["hosts=1", "hosts=0, gpus=1"]),
        ({}, [{}], []),
    ],
)
def test_the_largest_is_first_and_of_equals_the_first_by_dim(
    sizes: dict[str, int], failed: list[dict[str, int]], left: list[str]
) -> None:
    assert [selection_text(one) for one in surviving_slices(sizes, failed)] == left


@given(st.data())
def test_every_rank_that_has_not_failed_is_in_one_slice(data: st.DataObject) -> None:
    sizes = {dim: data.draw(st.integers(1, 4)) for dim in ("hosts", "gpus")}
    points = [
        dict(zip(sizes, place, strict=True)) for place in product(*map(range, sizes.values()))
    ]
    failed = data.draw(st.lists(st.sampled_from(points), min_size=1))
    slices = surviving_slices(sizes, failed)
    for point in points:
        found = [one for one in slices if all(point[dim] in ranks for dim, ranks in one.items())]
        assert len(found) == (point not in failed)


@pytest.mark.parametrize(
    ("sizes", "chosen", "slices"),
    [
        ({"gpus": 4}, [{"gpus": 3}], ["gpus=3"]),
        ({"gpus": 4}, [{"gpus": 1}, {"gpus": 2}], ["gpus=1:3"]),
        ({"gpus": 4}, [{"gpus": 0}, {"gpus": 2}], ["gpus=0", "gpus=2"]),
        ({"gpus": 2}, [{"gpus": 0}, {"gpus": 1}], ["gpus=0:2"]),
        ({"hosts": 2, "gpus": 2}, [{"hosts": 1, "gpus": 0}, {"hosts": 1, "gpus": 1}], ["hosts=1"]),
    ],
)
def test_slices_have_all_and_only_the_ranks_that_are_chosen(
    sizes: dict[str, int], chosen: list[dict[str, int]], slices: list[str]
) -> None:
    assert [selection_text(one) for one in slices_of(sizes, chosen)] == slices
