"""ValueMesh: one value for each rank."""

from __future__ import annotations

import gc
import pickle
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from monarch._src.shape import Extent, NDSlice, Region, Runs, Shape, ValueMesh


@pytest.fixture
def mesh() -> ValueMesh[int]:
    return ValueMesh(Extent(["hosts", "gpus"], [2, 4]), range(8))


def test_it_takes_a_shape_a_region_or_an_extent() -> None:
    ndslice = NDSlice.new_row_major([2])
    for shape in (Shape(["gpus"], ndslice), Region(["gpus"], ndslice), Extent(["gpus"], [2])):
        assert repr(ValueMesh(shape, "ab")) == "ValueMesh({gpus: 2}, ['a', 'b'])"


def test_values_of_a_slice_are_counted_from_its_own_start() -> None:
    part = Extent(["gpus"], [8]).region.slice(gpus=slice(4, 8))
    mesh = ValueMesh(part, "abcd")
    assert [(point.rank, dict(point), value) for point, value in mesh.items()] == [
        (0, {"gpus": 0}, "a"),
        (1, {"gpus": 1}, "b"),
        (2, {"gpus": 2}, "c"),
        (3, {"gpus": 3}, "d"),
    ]
    assert mesh.item(gpus=3) == mesh.get(3) == "d"


def test_items_come_in_rank_order_with_points_relative_to_the_slice(mesh: ValueMesh[int]) -> None:
    part = mesh.slice(gpus=slice(1, None, 2))
    assert [(repr(point), value) for point, value in part.items()] == [
        ("{'hosts': 0/2, 'gpus': 0/2}", 1),
        ("{'hosts': 0/2, 'gpus': 1/2}", 3),
        ("{'hosts': 1/2, 'gpus': 0/2}", 5),
        ("{'hosts': 1/2, 'gpus': 1/2}", 7),
    ]
    assert list(part) == list(part.items())


def test_values_are_a_list_that_is_the_readers_own(mesh: ValueMesh[int]) -> None:
    mesh.values().clear()
    assert mesh.values() == list(range(8))


def test_item_takes_one_coordinate_for_each_dim(mesh: ValueMesh[int]) -> None:
    assert mesh.item(hosts=1, gpus=2) == 6
    assert mesh.slice(hosts=1).item(gpus=2) == 6
    assert mesh.slice(hosts=1, gpus=2).item() == 6


@pytest.mark.parametrize(
    ("coords", "error", "text"),
    [
        ({"hosts": 0, "gpu": 0}, KeyError, "no dim 'gpu'; there are dims hosts, gpus"),
        ({"hosts": 0}, KeyError, "no coordinate for dim 'gpus'; give dims hosts, gpus"),
        ({"hosts": 0, "gpus": 0, "x": 0}, KeyError, "no dim 'x'"),
        ({"hosts": 2, "gpus": 0}, IndexError, "hosts=2 is out of range; dim 'hosts' has size 2"),
        ({"hosts": 0, "gpus": -1}, IndexError, "gpus=-1 is out of range"),
    ],
)
def test_item_refuses_with_the_dim_and_the_remedy(
    mesh: ValueMesh[int], coords: dict[str, int], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        mesh.item(**coords)


@pytest.mark.parametrize("position", [-1, 4])
def test_get_refuses_a_position_that_is_not_in_the_slice(
    mesh: ValueMesh[int], position: int
) -> None:
    with pytest.raises(ValueError, match=f"no value at {position}; there are 4"):
        mesh.slice(hosts=1).get(position)


def test_slices_of_values_refuse_as_every_mesh_does(mesh: ValueMesh[int]) -> None:
    with pytest.raises(TypeError, match="no dim 'gpu'"):
        mesh.slice(gpu=0)
    with pytest.raises(IndexError, match="gpus=4 is out of range"):
        mesh.slice(gpus=4)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_there_must_be_a_value_for_every_rank(count: int) -> None:
    text = f"{count} values for the 4 ranks of {{gpus: 4}}; give one for every rank"
    with pytest.raises(ValueError, match=text):
        ValueMesh(Extent(["gpus"], [4]), range(count))
    with pytest.raises(ValueError, match=text):
        ValueMesh.from_encoded(Extent(["gpus"], [4]), [b""] * count, bytes)


def test_without_dims_it_holds_one_value() -> None:
    mesh = ValueMesh(Shape.unity(), ["x"])
    assert repr(mesh) == "ValueMesh({}, ['x'])"
    assert mesh.item() == mesh.get(0) == "x"
    assert len(mesh) == 1
    assert mesh.flatten("ranks").sizes == {"ranks": 1}


def test_from_indexed_takes_answers_in_order_of_arrival_and_the_last_counts() -> None:
    extent = Extent(["gpus"], [3])
    mesh = ValueMesh.from_indexed(extent, [(2, "c"), (0, "x"), (1, "b"), (0, "a")])
    assert mesh.values() == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"no value for position 1 \(2 of 3 are missing\)"):
        ValueMesh.from_indexed(extent, [(0, "a")])
    with pytest.raises(IndexError, match="no position 3; there are 3"):
        ValueMesh.from_indexed(extent, [(3, "a")])


def test_meshes_are_compared_by_identity_so_that_values_are_not() -> None:
    one = ValueMesh(Extent(["gpus"], [2]), [np.ones(2), np.ones(2)])
    two = ValueMesh(Extent(["gpus"], [2]), [np.ones(2), np.ones(2)])
    assert one != two
    assert len({one, two, one}) == 2


def test_arrays_are_values_like_any_other() -> None:
    arrays = [np.arange(3), np.arange(3)]
    mesh = ValueMesh(Extent(["gpus"], [2]), arrays)
    assert mesh.get(0) is arrays[0]
    assert mesh.get(1) is arrays[1]
    copy = pickle.loads(pickle.dumps(mesh))
    assert [value.tolist() for value in copy.values()] == [[0, 1, 2], [0, 1, 2]]


def decode_text(payload: bytes) -> str:
    decoded.append(payload)
    return payload.decode()


decoded: list[bytes] = []


@pytest.fixture
def encoded() -> ValueMesh[str]:
    decoded.clear()
    payloads = [b"ok"] * 3 + [b"bad"] + [b"ok"] * 4
    return ValueMesh.from_encoded(Extent(["hosts", "gpus"], [2, 4]), payloads, decode_text)


def test_reading_one_value_decodes_one(encoded: ValueMesh[str]) -> None:
    assert decoded == []
    assert encoded.item(hosts=0, gpus=3) == "bad"
    assert decoded == [b"bad"]


def test_dims_and_sizes_are_known_without_decoding(encoded: ValueMesh[str]) -> None:
    view = encoded.slice(hosts=1).rename(gpus="x")
    assert (view.sizes, len(view), view.size("x")) == ({"x": 4}, 4, 4)
    assert decoded == []


def test_views_share_what_was_decoded(encoded: ValueMesh[str]) -> None:
    encoded.slice(hosts=1).values()
    encoded.slice(hosts=1, gpus=0).item()
    encoded.flatten("ranks").get(7)
    assert decoded == [b"ok"]
    assert encoded.values() == ["ok"] * 3 + ["bad"] + ["ok"] * 4
    assert decoded == [b"ok", b"ok", b"bad"]


def test_pickling_a_view_decodes_it_and_nothing_else(encoded: ValueMesh[str]) -> None:
    copy = pickle.loads(pickle.dumps(encoded.slice(hosts=1)))
    assert decoded == [b"ok"]
    assert copy.values() == ["ok"] * 4
    assert copy.sizes == {"gpus": 4}


def test_equal_neighbours_take_the_room_of_one() -> None:
    extent = Extent(["gpus"], [10_000])
    one = len(pickle.dumps(ValueMesh(Extent(["gpus"], [1]), ["x" * 100])))
    assert len(pickle.dumps(ValueMesh(extent, ["x" * 100] * 10_000))) < one + 20


def test_up_to_sixteen_values_are_all_shown() -> None:
    assert repr(ValueMesh(Extent(["gpus"], [4]), [10, 20, 30, 40])) == (
        "ValueMesh({gpus: 4}, [10, 20, 30, 40])"
    )
    sixteen = ValueMesh(Extent(["gpus"], [16]), ["ok"] * 16)
    assert repr(sixteen).count("'ok'") == 16


def test_more_values_are_shown_as_runs() -> None:
    mesh = ValueMesh(Extent(["gpus"], [64]), ["ok"] * 8 + ["bad"] + ["ok"] * 55)
    assert repr(mesh) == "ValueMesh({gpus: 64}, [8 x 'ok', 'bad', 55 x 'ok'])"


def test_a_repr_shows_at_most_sixteen_runs_and_decodes_little_more() -> None:
    decoded.clear()
    payloads = [str(rank).encode() for rank in range(1000)]
    mesh = ValueMesh.from_encoded(Extent(["gpus"], [1000]), payloads, decode_text)
    assert repr(mesh).endswith("'14', '15', ... 984 more])")
    assert len(decoded) == 17  # one more, to see where the last run ends


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 10_000, "ValueMesh({}, ['xxxxxxxx"),
        (b"x" * 10_000, "ValueMesh({}, [<bytes of 10000: b'xxxxxxxxxxxxxxxx'...>])"),
        (bytearray(10_000), "ValueMesh({}, [<bytearray of 10000: b'"),
        (b"short", "ValueMesh({}, [b'short'])"),
        (bytearray(b"short"), "ValueMesh({}, [bytearray(b'short')])"),
        pytest.param(10**10_000, "ValueMesh({}, [<int of 33220 bits>])", id="long int"),
        (list(range(1000)), "ValueMesh({}, [[0, 1, 2, 3, 4, 5, ...]])"),
        ({"loss": 0.5, "accuracy": 0.9}, "ValueMesh({}, [{'loss': 0.5, 'accuracy': 0.9}])"),
        (dict.fromkeys(range(99), 0), "ValueMesh({}, [{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, ...}])"),
        ({}, "ValueMesh({}, [{}])"),
        ({1: {2: {3: {4: 5}}}}, "ValueMesh({}, [{1: {2: {3: {...}}}}])"),
        (np.eye(2), "ValueMesh({}, [array([[1., 0.], [0., 1.]])])"),
    ],
)
def test_each_value_is_shown_in_one_bounded_line(value: Any, text: str) -> None:
    shown = repr(ValueMesh(Shape.unity(), [value]))
    assert shown.startswith(text)
    assert len(shown) < 120
    assert "\n" not in shown


def test_a_value_whose_repr_raises_does_not_spoil_the_others() -> None:
    class Sullen:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "<Sullen instance at" in repr(ValueMesh(Extent(["gpus"], [2]), [Sullen(), 1]))


def test_it_can_be_referred_to_weakly(mesh: ValueMesh[int]) -> None:
    other = ValueMesh(Extent(["gpus"], [1]), [0])
    reference = weakref.ref(other)
    assert reference() is other
    del other
    gc.collect()
    assert reference() is None


def test_runs_given_are_shared_and_not_copied() -> None:
    runs = Runs(["a", "a"])
    assert ValueMesh(Extent(["gpus"], [2]), runs)._values is runs


def test_a_value_is_had_by_its_rank() -> None:
    values = ValueMesh(Extent(["hosts", "gpus"], [2, 2]), ["a", "b", "c", "d"])
    assert [values[0], values[3], values[-1], values.slice(hosts=1)[0]] == ["a", "d", "d", "c"]
    for rank in (4, -5):
        with pytest.raises(IndexError, match=f"no value of rank {rank}; there are 4"):
            values[rank]
    with pytest.raises(TypeError, match=r"not by slice; .* values\.slice\(dim=\.\.\.\)"):
        values[0:2]  # type: ignore[index]


def test_numpy_has_the_values_over_the_dims_of_the_mesh() -> None:
    losses = ValueMesh(Extent(["hosts", "gpus"], [2, 3]), range(6))
    assert np.array_equal(np.asarray(losses), [[0, 1, 2], [3, 4, 5]])
    assert np.asarray(losses, dtype="float32").dtype == np.float32
    assert np.asarray(losses.slice(hosts=1, gpus=2)).item() == 5
    rows = ValueMesh(Extent(["gpus"], [2]), [np.zeros(3), np.ones(3)])
    assert np.asarray(rows).shape == (2, 3)
    assert float(np.mean(rows)) == 0.5  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="inhomogeneous"):
        np.asarray(ValueMesh(Extent(["gpus"], [2]), [[1], [1, 2]]))


def test_pandas_has_a_row_for_each_rank_indexed_by_the_dims() -> None:
    losses = ValueMesh(Extent(["hosts", "gpus"], [2, 2]), [0.5, 1.5, 2.5, 3.5])
    frame = losses.to_pandas()
    assert frame.loc[(1, 0), "value"] == 2.5
    assert frame.groupby("hosts")["value"].mean().tolist() == [1.0, 3.0]
    one = losses.slice(hosts=1).to_pandas()
    assert (one.index.name, one["value"].to_dict()) == ("gpus", {0: 2.5, 1: 3.5})
    assert losses.slice(hosts=1, gpus=1).to_pandas()["value"].tolist() == [3.5]


def test_mappings_have_their_keys_as_columns_and_other_values_stay_whole() -> None:
    gpus = Extent(["gpus"], [2])
    metrics = ValueMesh(gpus, [{"loss": 0.5, "lr": 1e-3}, {"loss": 0.25}])
    frame = metrics.to_pandas()
    assert list(frame.columns) == ["loss", "lr"]
    assert frame["loss"].tolist() == [0.5, 0.25]
    assert frame["lr"].isna().tolist() == [False, True]
    assert ValueMesh(gpus, [[1, 2], [3]]).to_pandas()["value"].tolist() == [[1, 2], [3]]
    assert ValueMesh(gpus, [{"a": 1}, 2]).to_pandas()["value"].tolist() == [{"a": 1}, 2]


def test_without_pandas_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install pandas, or use items\(\)"):
        ValueMesh(Extent(["gpus"], [1]), [1]).to_pandas()
