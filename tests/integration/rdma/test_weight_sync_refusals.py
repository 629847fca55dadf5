"""What does not fit is told at the call, all of it, before a byte moves."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import numpy
import pytest
import torch

from monarch._src.rdma.weights.layout import ALIGNED
from monarch.rdma import (
    StateDictHandle,
    StateDictMismatchError,
    StateDictReader,
    TensorSlice,
    get_state_dict,
    put_state_dict,
)


def test_all_that_does_not_fit_is_told_at_once() -> None:
    source = put_state_dict({"a": torch.zeros(3, 4), "b": torch.zeros(5), "c": torch.zeros(2)})
    room = {"a": torch.zeros(4, 3), "b": torch.zeros(5).double(), "d": torch.zeros(1)}
    with pytest.raises(StateDictMismatchError) as raised:
        get_state_dict(source.handle, room)
    error = raised.value
    assert (error.missing, error.unexpected) == (("d",), ("c",))
    assert error.mismatched == {
        "a": "[0:3, 0:4] of (3, 4) is to be pulled into a tensor of shape (4, 3)",
        "b": "published as float32, to be pulled into float64",
    }
    assert "missing: 'd'; unexpected: 'c'; 'a': [0:3, 0:4]" in str(error)
    assert isinstance(error, ValueError)


def test_without_strict_what_both_have_is_pulled() -> None:
    source = put_state_dict({"a": torch.ones(3), "b": torch.ones(5)})
    room = {"b": torch.zeros(5), "c": torch.zeros(2)}
    pulled = get_state_dict(source.handle, room, strict=False).get()
    assert list(pulled) == ["b"]
    assert room["b"].sum() == 5
    with pytest.raises(StateDictMismatchError, match="missing: 'x'"):
        get_state_dict(source.handle, room, strict=False, slices={"x": TensorSlice.whole((2,))})


def test_slices_that_nobody_has_are_told_with_where_they_are() -> None:
    half = TensorSlice.shard((4, 6), 0, 0, 2)
    source = put_state_dict({"w": torch.zeros(2, 6)}, slices={"w": half})
    with pytest.raises(
        StateDictMismatchError, match=r"'w': no given publisher .* elements \[2:4, 0:6\]"
    ):
        get_state_dict(source.handle)
    with pytest.raises(StateDictMismatchError, match=r"the tensor was published as \(4, 6\)"):
        get_state_dict(source.handle, slices={"w": TensorSlice.whole((2, 6))})
    other = put_state_dict({"w": torch.zeros(2, 6).half()}, slices={"w": half})
    with pytest.raises(StateDictMismatchError, match=r"publishers differ: float32 .* float16"):
        get_state_dict([source.handle, other.handle])


def test_memory_that_may_not_be_written_is_refused() -> None:
    source = put_state_dict({"w": numpy.zeros(4)})
    room = numpy.zeros(4)
    room.flags.writeable = False
    with pytest.raises(StateDictMismatchError, match="the array to pull into is read-only"):
        get_state_dict(source.handle, {"w": room})


@pytest.mark.parametrize(
    "room",
    [torch.zeros(1).expand(4), numpy.lib.stride_tricks.as_strided(numpy.zeros(1), (4,), (0,))],
)
def test_one_elements_memory_for_several_is_refused_before_anything_moves(room: Any) -> None:
    kind = torch.ones(4) if isinstance(room, torch.Tensor) else numpy.ones(4)
    other = torch.zeros(2)
    source = put_state_dict({"other": torch.ones(2), "w": kind})
    with pytest.raises(StateDictMismatchError, match=r"'w': .* share memory \(`expand`\)"):
        get_state_dict(source.handle, {"other": other, "w": room})
    assert other.sum() == 0


def test_a_tensor_that_shows_the_negative_of_its_memory_is_pulled_into_as_any_other() -> None:
    negative = torch._neg_view(torch.zeros(3))  # pyright: ignore[reportPrivateImportUsage]
    get_state_dict(put_state_dict({"w": torch.ones(3)}).handle, {"w": negative}).get()
    assert negative.tolist() == [1, 1, 1]


def test_a_reader_pulls_nothing_to_where_a_tensor_was_before_it_was_resized() -> None:
    room = {"w": torch.zeros(4)}
    reader = StateDictReader(put_state_dict({"w": torch.ones(4)}).handle, room)
    assert reader.pull().get()["w"].sum() == 4
    room["w"].resize_(1 << 22)
    with pytest.raises(ValueError, match="was resized, and its memory has moved"):
        reader.pull()


put: Any = put_state_dict  # of no type: the cases call them wrongly
get: Any = get_state_dict


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda _: put({0: torch.ones(1)}), "the name 0 is of type int: give a str"),
        (lambda _: put(torch.nn.Linear(1, 1)), "model.state_dict()`, not Linear"),
        (lambda s: s.refresh([torch.ones(1)]), "model.state_dict()`, not list"),
        (lambda s: get(s.handle, torch.nn.Linear(1, 1)), "by name, such as"),
        (get_state_dict, "StateDictHandle (`.handle` of the StateDictSource)"),
        (lambda s: get([s.handle, 3]), "not by a int"),
        (lambda s: get(s.handle, slices={"a": (0, 1)}), "'a' is of type tuple"),
        (lambda _: put({"a": torch.ones(1)}, slices={"a": 1}), "give a TensorSlice"),
        (lambda _: put({"a": torch.ones(1)}, buffers=2.5), "as an integer"),
        (lambda s: s.refresh(version=2.5), "as an integer"),
        (lambda s: get(s.handle, version=1.5), "as an integer"),
        (lambda s: get(s.handle, newer_than="1"), "as an integer"),
    ],
)
def test_what_is_of_another_type_is_refused_at_the_call_and_the_next_one_works(
    call: Callable[[Any], Any], text: str
) -> None:
    source = put_state_dict({"a": torch.ones(1)})
    with pytest.raises(TypeError) as raised:
        call(source)
    assert text in str(raised.value)
    assert source.refresh(version=numpy.int64(5)) == 5  # pyright: ignore[reportArgumentType]
    assert get_state_dict(source.handle).get().version == 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "'x' is of type int, and neither a torch tensor nor a numpy array"),
        ({"step": torch.ones(1)}, "flatten it, with names such as 'layer.weight'"),
        (torch.ones(3).to_sparse(), "of layout torch.sparse_coo: it has no plain elements"),
        (torch.ones(3, device="meta"), "on meta: it has no plain elements"),
        (numpy.array(["a"]), "an array of <U1: published arrays have numbers"),
        (numpy.ma.array([1.0]), "'x' is a masked array, whose mask would be lost: give its"),
        (numpy.zeros(2, ">f4"), "in the byte order of this machine"),
    ],
)
def test_what_has_no_elements_to_move_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(TypeError, match="'x'") as raised:
        put_state_dict({"fine": torch.ones(1), "x": value})
    assert text in str(raised.value)


def test_a_distributed_tensor_is_refused_with_what_to_give_instead() -> None:
    class DTensor(torch.Tensor):
        placements = ()

        def to_local(self) -> torch.Tensor:
            return torch.ones(1)

    with pytest.raises(TypeError, match=r"give its `to_local\(\)`.* TensorSlice"):
        put_state_dict({"x": torch.ones(1).as_subclass(DTensor)})


def test_what_cannot_be_published_is_refused() -> None:
    with pytest.raises(ValueError, match="an empty state dict"):
        put_state_dict({})
    for buffers in (0, 33):
        with pytest.raises(ValueError, match="give a number from 1 to 32"):
            put_state_dict({"a": torch.ones(1)}, buffers=buffers)
    with pytest.raises(ValueError, match="no publisher was given"):
        get_state_dict([])


def test_a_state_dict_of_another_shape_is_a_new_one() -> None:
    source = put_state_dict({"a": torch.ones(3), "b": torch.ones(2)})
    with pytest.raises(StateDictMismatchError, match="call put_state_dict for a new one") as raised:
        source.refresh({"a": torch.ones(4), "c": torch.ones(2)})
    assert (raised.value.missing, raised.value.unexpected) == (("b",), ("c",))
    assert "'a': torch float32 (4,), it was torch float32 (3,)" in str(raised.value)
    assert source.version == 0
    assert get_state_dict(source.handle).get()["a"].sum() == 3


def test_times_and_versions_that_make_no_sense_are_refused() -> None:
    reader = StateDictReader(put_state_dict({"a": torch.ones(1)}).handle)
    with pytest.raises(ValueError, match="give seconds of at least 0"):
        reader.pull(timeout=-1)
    with pytest.raises(ValueError, match="or `newer_than`, or neither"):
        reader.pull(version=1, newer_than=0)
    with pytest.raises(ValueError, match="a version of at least 0"):
        reader.pull(version=-1)
    assert reader.pull().get().version == 0


def test_two_pulls_into_the_same_memory_are_refused() -> None:
    source = put_state_dict({"a": torch.ones(1)})
    reader = StateDictReader(source.handle)
    first = reader.pull(newer_than=0)
    with pytest.raises(RuntimeError, match="a pull into the same memory is running"):
        reader.pull()
    source.refresh()
    assert first.get().version == 1


def test_a_forged_handle_leads_to_no_other_memory() -> None:
    handle = put_state_dict({"a": torch.ones(4)}).handle
    entry = msgspec.structs.replace(handle.layout.entries[0], offset=ALIGNED)
    outside = msgspec.structs.replace(handle.layout, entries=(entry,))
    with pytest.raises(ValueError, match="exceeds its slot"):
        StateDictHandle(handle.buffer, 2, outside)
    larger = msgspec.structs.replace(handle.layout, slot_size=1 << 40)
    for buffers, layout in ((2, larger), (3, handle.layout), (33, handle.layout)):
        with pytest.raises(ValueError, match="exceeds its memory"):
            StateDictHandle(handle.buffer, buffers, layout)
    copy = pickle.loads(pickle.dumps(handle))
    assert (copy.buffer, copy.names, copy.size()) == (handle.buffer, ("a",), 16)
    assert repr(copy) == "<StateDictHandle: 1 tensors, 16 bytes, of client>"


ON_A_RANK = """
import json
import numpy
from monarch.actor import Actor, ActorError, endpoint, this_host
from monarch.rdma import get_state_dict, put_state_dict

class Puller(Actor):
    @endpoint
    def pull(self, handle, room, version):
        get_state_dict(handle, room, version=version).get()

if __name__ == "__main__":
    source = put_state_dict({"a": numpy.zeros(3)}, version=4)
    source.refresh()
    source.refresh()
    puller = this_host().spawn_procs().spawn("puller", Puller)
    found = []
    for room in (None, {"b": numpy.zeros(1)}):
        try:
            puller.pull.call_one(source.handle, room, 4).get()
        except ActorError as error:
            found.append([type(error.exception).__name__, str(error.exception)])
    print(json.dumps(found))
"""


def test_errors_arrive_whole_from_ranks_that_have_imported_nothing_public(
    run_python: Callable[..., str],
) -> None:
    (gone, gone_text), (unlike, unlike_text) = json.loads(run_python(ON_A_RANK))
    assert gone == "StateDictVersionError"
    assert gone_text.startswith("version 4 of the state dict of client is gone: it is at version")
    assert unlike == "StateDictMismatchError"
    assert unlike_text.endswith("differ from the requested ones: missing: 'b'; unexpected: 'a'")
