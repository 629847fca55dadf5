"""Mesh operations in any sequence, against numpy arrays that hold the ranks.

The array is the model: its elements are global ranks, its axes the dims, and slicing, reshaping and
raveling it say what slice, split, flatten and the maps between ranks and positions have to answer.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.shape import Extent, Region, Runs, ValueMesh

NAMES = [f"d{i}" for i in range(100)]  # four splits of three dims take 90


@dataclass
class Meshes:
    """A region, the array that models it, and (the region being dense at first) values over it."""

    region: Region
    array: np.ndarray[Any, Any]
    values: ValueMesh[Any]
    unused: list[str] = field(default_factory=lambda: list(NAMES))

    @property
    def labels(self) -> list[str]:
        return self.region.labels

    def apply(self, operation: str, array: np.ndarray[Any, Any], *args: Any, **kwargs: Any) -> None:
        """Do the same to region and values, and take the array for the answer."""
        self.region = getattr(self.region, operation)(*args, **kwargs)
        self.values = getattr(self.values, operation)(*args, **kwargs)
        self.array = array


def payload_of(draw: st.DrawFn, count: int) -> list[Any]:
    element = st.sampled_from([0, 1, True, 1.0, "ok", "bad", None, b"x", (1, "a")])
    return draw(st.lists(element, min_size=count, max_size=count))


def selector(size: int) -> st.SearchStrategy[int | slice]:
    """Every kind of selector that Python would accept, most of them selecting something."""
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = st.none() | st.integers(1, size + 1)
    return st.integers(0, size - 1) | st.builds(slice, bound, bound, step)


def slice_some(draw: st.DrawFn, meshes: Meshes) -> None:
    chosen = {
        label: draw(selector(size), label=label)
        for label, size in meshes.region.sizes.items()
        if draw(st.booleans())
    }
    array = meshes.array[tuple(chosen.get(label, slice(None)) for label in meshes.labels)]
    if array.size == 0:
        for mesh in (meshes.region, meshes.values):
            with pytest.raises(ValueError, match="selects nothing"):
                mesh.slice(**chosen)
    else:
        meshes.apply("slice", np.asarray(array), **chosen)


def split_some(draw: st.DrawFn, meshes: Meshes) -> None:
    arguments: dict[str, Any] = {}
    shape: list[int] = []
    for label, size in meshes.region.sizes.items():
        if not draw(st.booleans()):
            shape.append(size)
            continue
        outer = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        names = [meshes.unused.pop() for _ in range(2)]
        arguments[label] = tuple(names)
        given_sizes = dict(zip(names, (outer, size // outer), strict=True))
        left_out = draw(st.sampled_from([None, *names]))
        arguments.update({name: n for name, n in given_sizes.items() if name != left_out})
        shape.extend(given_sizes.values())
    meshes.apply("split", meshes.array.reshape(shape), **arguments)


def flatten_all(draw: st.DrawFn, meshes: Meshes) -> None:
    name = draw(st.sampled_from([*meshes.labels, meshes.unused.pop()]))
    ranks = meshes.array.ravel()
    if len(set(np.diff(ranks).tolist())) <= 1:
        meshes.apply("flatten", ranks, name)
    else:
        with pytest.raises(ValueError, match="can't be one dim"):
            meshes.region.flatten(name)


def rename_some(draw: st.DrawFn, meshes: Meshes) -> None:
    """Exchange the names of some dims, so that collisions with names that go are there too."""
    labels = meshes.labels
    names = draw(st.permutations(labels))
    meshes.apply("rename", meshes.array, **dict(zip(labels, names, strict=True)))
    assert meshes.labels == names


OPERATIONS = [slice_some, split_some, flatten_all, rename_some]


@st.composite
def meshes_after_operations(draw: st.DrawFn) -> Meshes:
    sizes = draw(st.lists(st.integers(1, 6), max_size=3))
    extent = Extent([f"a{i}" for i in range(len(sizes))], sizes)
    values = ValueMesh(extent, payload_of(draw, extent.nelements))
    meshes = Meshes(extent.region, np.arange(extent.nelements).reshape(sizes), values)
    for operation in draw(st.lists(st.sampled_from(OPERATIONS), max_size=4)):
        operation(draw, meshes)
    return meshes


@given(meshes_after_operations())
def test_dims_and_ranks_are_those_of_the_array(meshes: Meshes) -> None:
    region, array = meshes.region, meshes.array
    assert tuple(region.extent.sizes) == tuple(region.sizes.values()) == array.shape
    assert list(region.ranks()) == list(region) == array.ravel().tolist()
    assert len(region) == array.size == region.extent.nelements


@given(meshes_after_operations())
def test_strides_are_those_of_the_array_where_they_mean_something(meshes: Meshes) -> None:
    view = meshes.region.ndslice
    strides = np.lib.stride_tricks.as_strided(
        np.arange(1000), view.sizes, [8 * stride for stride in view.strides]
    )
    assert (strides + view.offset == meshes.array).all()


@given(meshes_after_operations())
def test_positions_and_global_ranks_are_inverse_maps(meshes: Meshes) -> None:
    region = meshes.region
    for position, rank in enumerate(meshes.array.ravel().tolist()):
        assert region.global_rank(position) == rank
        assert region.position(rank) == position
        place = np.unravel_index(position, meshes.array.shape)
        assert tuple(region.point_of_base_rank(rank).values()) == place
    inside = set(meshes.array.ravel().tolist())
    for rank in range(max(inside) + 2):
        assert (rank in region) == (rank in inside)


@given(meshes_after_operations())
def test_values_follow_their_ranks_through_every_operation(meshes: Meshes) -> None:
    mesh, everything = meshes.values, meshes.values._values
    expected = [everything[rank] for rank in meshes.array.ravel().tolist()]
    assert len(mesh) == mesh.size() == len(expected)
    assert mesh.sizes == dict(mesh.extent) == meshes.region.sizes
    assert all(a is b for a, b in zip(mesh.values(), expected, strict=True))
    for rank, (point, value) in enumerate(mesh.items()):
        assert point.rank == rank
        assert point.extent == meshes.region.extent
        assert value is expected[rank]
        assert mesh.get(rank) is value
        assert mesh.item(**point) is value


@given(meshes_after_operations())
def test_pickling_keeps_dims_and_values_and_only_those_in_view(meshes: Meshes) -> None:
    copy = pickle.loads(pickle.dumps(meshes.values))
    assert copy.extent == meshes.values.extent
    assert repr(copy) == repr(meshes.values)  # equal values of equal types: 1, 1.0 and True differ
    assert len(copy._values) == len(meshes.values)
    region = pickle.loads(pickle.dumps(meshes.region))
    assert region == meshes.region
    assert hash(region) == hash(meshes.region)


@given(meshes_after_operations())
def test_views_of_encoded_values_read_the_same_and_decode_each_run_once(meshes: Meshes) -> None:
    decoded: list[bytes] = []

    def decode(payload: bytes) -> Any:
        decoded.append(payload)
        return pickle.loads(payload)

    everything = list(meshes.values._values)
    payloads = [pickle.dumps(value) for value in everything]
    runs = Runs.of_encoded(payloads, decode)
    encoded = ValueMesh(Extent(["all"], [len(payloads)]), runs)
    assert decoded == []
    view = encoded._new_with_region(meshes.region)
    assert repr(view.values()) == repr(meshes.values.values())
    assert repr(view.values()) == repr(meshes.values.values())
    assert repr(encoded.values()) == repr(everything)
    borders = sum(a != b for a, b in pairwise(payloads))
    assert len(decoded) == borders + 1
