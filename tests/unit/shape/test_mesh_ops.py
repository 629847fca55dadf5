"""MeshTrait: one implementation of the mesh operations for every kind of mesh."""

from __future__ import annotations

import pytest

from monarch._src.shape import Extent, MeshTrait, Region


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
