"""Names of sets of ranks are short where they can be, and exact always."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.shape.coordinates import name_indices, name_point, name_procs, name_ranks

BOX = [{"hosts": h, "gpus": g} for h in range(2) for g in range(4)]


@pytest.mark.parametrize(
    ("points", "name"),
    [
        ([], ""),
        ([{}], ""),
        ([{"gpus": 3}], "gpus=3"),
        ([{"gpus": g} for g in range(8)], "gpus=0..7"),
        ([{"gpus": g} for g in (6, 0, 1, 2, 3)], "gpus=0..3,6"),
        (BOX, "hosts=0..1 gpus=0..3"),
        (BOX[4:], "hosts=1 gpus=0..3"),
        ([p for p in BOX if p["gpus"] == 2], "hosts=0..1 gpus=2"),
        (BOX[:5], "hosts=0 gpus=0..3; hosts=1 gpus=0"),
        ([BOX[0], BOX[5]], "hosts=0 gpus=0; hosts=1 gpus=1"),
    ],
)
def test_a_set_of_ranks_has_this_name(points: list[dict[str, int]], name: str) -> None:
    assert name_ranks(points) == name
    assert name_ranks(iter(reversed(points))) == name


def test_a_point_is_named_dim_by_dim() -> None:
    assert name_point({"hosts": 1, "gpus": 3}) == "hosts=1 gpus=3"


@given(st.sets(st.integers(0, 40), min_size=1))
def test_a_name_of_indices_tells_all_and_only_them(indices: set[int]) -> None:
    assert told(name_indices(indices)) == indices


@given(st.sets(st.tuples(*[st.integers(0, 2)] * 3), min_size=1))
def test_a_name_of_ranks_tells_all_and_only_them(places: set[tuple[int, int, int]]) -> None:
    points = [dict(zip("abc", place, strict=True)) for place in places]
    found: set[tuple[int, int, int]] = set()
    for part in name_ranks(points).split("; "):
        a, b, c = (told(side.partition("=")[2]) for side in part.split(" "))
        box = {(x, y, z) for x in a for y in b for z in c}
        assert not box & found, "a rank is named twice"
        found |= box
    assert found == places


def told(name: str) -> set[int]:
    """The indices that a name such as `0..3,6` tells."""
    indices: set[int] = set()
    for run in name.split(","):
        first, last = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", run).groups()  # type: ignore[union-attr]
        indices |= set(range(int(first), int(last or first) + 1))
    return indices


def test_procs_of_several_meshes_have_one_name() -> None:
    names = ["w[gpus=1]", "client", "w[gpus=0]", "v[hosts=0, gpus=3]", "solo", "w[gpus=7]"]
    assert name_procs(names) == "w[gpus=0..1,7], v[hosts=0, gpus=3], client, solo"
    assert name_procs([]) == ""
