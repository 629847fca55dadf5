"""MeshTrait: one implementation of the mesh operations for every kind of mesh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.shape import Extent, IndexedMesh, MeshTrait, Region


class Mesh(MeshTrait):
    """The smallest mesh there is."""

    def __init__(self, region: Region, name: str) -> None:
        self._region = region
        self.name = name

    def _new_with_region(self, region: Region) -> Mesh:
        return Mesh(region, self.name)

    @property
    def ranks(self) -> list[int]:
        return list(self._region.ranks())


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(Extent(["hosts", "gpus"], [2, 4]).region, "workers")


def test_every_operation_gives_a_view_of_the_same_mesh(mesh: Mesh) -> None:
    views = [
        mesh.slice(hosts=1),
        mesh.split(gpus=("dp", "pp"), pp=2).slice(pp=0),
        mesh.flatten("ranks"),
        mesh.rename(gpus="devices"),
    ]
    assert [type(view) for view in views] == [Mesh] * 4
    assert {view.name for view in views} == {"workers"}
    assert [view.sizes for view in views] == [
        {"gpus": 4},
        {"hosts": 2, "dp": 2},
        {"ranks": 8},
        {"hosts": 2, "devices": 4},
    ]
    assert views[1].ranks == [0, 2, 4, 6]


def test_operations_leave_the_mesh_as_it_was(mesh: Mesh) -> None:
    mesh.slice(hosts=1).rename(gpus="x")
    assert mesh.sizes == {"hosts": 2, "gpus": 4}


def test_size_is_of_one_dim_of_several_or_of_all(mesh: Mesh) -> None:
    assert mesh.size("gpus") == 4
    assert mesh.size(["hosts", "gpus"]) == mesh.size() == len(mesh) == 8
    assert mesh.size([]) == 1


def test_size_of_an_unknown_dim_is_a_key_error_that_lists_the_dims(mesh: Mesh) -> None:
    with pytest.raises(KeyError, match="no dim 'gpu'; there are dims hosts, gpus"):
        mesh.size("gpu")


def test_a_fully_sliced_mesh_has_no_dims_and_length_one(mesh: Mesh) -> None:
    one = mesh.slice(hosts=0, gpus=3)
    assert (one.sizes, len(one), one.size(), repr(one.extent)) == ({}, 1, 1, "{}")
    assert one.flatten("x").sizes == {"x": 1}


def test_a_mesh_without_views_of_itself_cannot_be_made() -> None:
    class NoViews(MeshTrait):
        pass

    with pytest.raises(TypeError, match="_new_with_region"):
        NoViews()  # type: ignore[abstract]


class Indexed(IndexedMesh):
    """The smallest mesh there is."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def _new_with_region(self, region: Region) -> Indexed:
        return Indexed(region)

    @property
    def ranks(self) -> Any:
        """Its ranks, as an array over its dims."""
        return np.asarray(self._region.ranks()).reshape(list(self.sizes.values()))


SIZES = (3, 4, 2)
MESH = Indexed(Extent(["hosts", "gpus", "dp"], SIZES).region)
RANKS = MESH.ranks


def places(size: int) -> st.SearchStrategy[Any]:
    """An int, a slice that selects something, or a list of places at equal distances."""

    def regular(bounds: tuple[int, int, int]) -> Any:
        first, last, step = bounds
        return list(range(min(first, last), max(first, last) + 1, step))

    ends = st.integers(0, size - 1)
    slices = st.slices(size).filter(
        lambda one: len(range(size)[one]) > 0 and (one.step is None or one.step > 0)
    )
    lists = st.tuples(ends, ends, st.integers(1, size)).map(regular)
    return st.one_of(st.integers(-size, size - 1), slices, lists)


@given(st.data(), st.integers(0, 3), st.booleans())
def test_an_index_selects_as_in_numpy(data: st.DataObject, count: int, has_gap: bool) -> None:
    sizes = SIZES[len(SIZES) - count :] if has_gap else SIZES[:count]
    chosen = [data.draw(places(size)) for size in sizes]
    expected = RANKS
    first = len(SIZES) - count if has_gap else 0
    axis = first
    for one in chosen:  # one by one, since numpy pairs several lists
        expected = expected[(slice(None),) * axis + (one,)]
        axis += not isinstance(one, int)
    index: Any = (..., *chosen) if has_gap else tuple(chosen)
    assert MESH[index].ranks.tolist() == expected.tolist()


def test_one_index_is_of_the_first_dim() -> None:
    assert MESH[1].sizes == {"gpus": 4, "dp": 2}
    assert MESH[0:2].sizes == {"hosts": 2, "gpus": 4, "dp": 2}
    assert MESH[[0, 2]].sizes == {"hosts": 2, "gpus": 4, "dp": 2}
    assert MESH[[2]].sizes == {"hosts": 1, "gpus": 4, "dp": 2}
    assert MESH[np.int64(2), -1].ranks.tolist() == RANKS[2, -1].tolist()


def test_iterating_gives_the_parts_along_the_first_dim() -> None:
    assert [part.ranks.tolist() for part in MESH] == RANKS.tolist()
    with pytest.raises(TypeError, match="has one rank and no dim"):
        iter(MESH[0, 0, 0])


@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        (3, IndexError, "hosts has no place 3; there are 3, counted from 0"),
        (-4, IndexError, "hosts has no place -4"),
        ((0, [0, 4]), IndexError, "gpus has no place 4; there are 4"),
        ((0, 0, 0, 0), IndexError, "4 indices for a mesh of 3 dims: {hosts: 3, gpus: 4, dp: 2}"),
        ((..., 0, ...), IndexError, "`...` stands once in an index"),
        ("gpus", TypeError, r"not by 'gpus'; dims by name are given to slice\(hosts=\.\.\.\)"),
        (None, TypeError, "not by None"),
        (1.0, TypeError, "not by 1.0"),
        ([], ValueError, "the list of places of hosts is empty"),
        ([2, 0], ValueError, r"the places \[2, 0\] of hosts are not in order"),
        ([0, 0], ValueError, "at equal distances"),
        ((0, [0, 1, 3]), ValueError, r"the places \[0, 1, 3\] of gpus are not in order and at"),
        (slice(2, 1), ValueError, "selects nothing"),
        (slice(None, None, -1), ValueError, "step"),
    ],
)
def test_an_index_that_selects_no_regular_part_is_refused(
    index: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as raised:
        MESH[index]
    assert "\n" not in str(raised.value)
