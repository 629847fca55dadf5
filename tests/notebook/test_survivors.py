"""The largest slice of a mesh that leaves failed ranks out."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_jupyter.meshes.survivors import surviving_slice


@pytest.mark.parametrize(
    ("sizes", "failed", "left"),
    [
        ({"gpus": 4}, [{"gpus": 0}], ("gpus", range(1, 4))),
        ({"gpus": 4}, [{"gpus": 1}], ("gpus", range(2, 4))),
        ({"gpus": 3}, [{"gpus": 1}], ("gpus", range(1))),
        ({"gpus": 2}, [{"gpus": 0}, {"gpus": 1}], None),
        ({"hosts": 2, "gpus": 4}, [{"hosts": 1, "gpus": 3}], ("gpus", range(3))),
        ({"hosts": 2, "gpus": 2}, [{"hosts": 0, "gpus": 0}], ("hosts", range(1, 2))),
        ({}, [{}], None),
    ],
)
def test_it_is_the_largest_and_of_equals_the_first(
    sizes: dict[str, int], failed: list[dict[str, int]], left: tuple[str, range] | None
) -> None:
    assert surviving_slice(sizes, failed) == left


@given(st.data())
def test_it_has_no_failed_rank(data: st.DataObject) -> None:
    sizes = {dim: data.draw(st.integers(1, 4)) for dim in ("hosts", "gpus")}
    points = [
        dict(zip(sizes, place, strict=True)) for place in product(*map(range, sizes.values()))
    ]
    failed = data.draw(st.lists(st.sampled_from(points), min_size=1))
    left = surviving_slice(sizes, failed)
    if left is not None:
        dim, ranks = left
        assert ranks
        assert not any(point[dim] in ranks for point in failed)
