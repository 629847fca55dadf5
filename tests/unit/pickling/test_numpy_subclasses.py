"""Arrays of subclasses of numpy's travel with their attributes, masks and hardness."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest
from numpy import ma

from monarch._src.pickling.pickler import dumps, loads
from monarch._src.wire.frames import decode, encode
from monarch._src.wire.messages import Call
from monarch._src.wire.segment_refs import SEGMENT_FROM

CALL = Call(1, 2, "step", 0, [], [])


def travelled(value: Any) -> Any:
    frames = [memoryview(bytearray(frame)) for frame in encode(CALL, dumps(value))]
    return loads(decode(frames)[1])


class WithUnit(numpy.ndarray):
    """Hands its attribute on to views."""

    unit: Any

    def __array_finalize__(self, obj: Any) -> None:
        self.unit = getattr(obj, "unit", None)


class WithSlots(numpy.ndarray):
    __slots__ = ("__hidden", "unit")

    def hide(self, value: Any) -> None:
        self.__hidden = value

    def hidden(self) -> Any:
        return self.__hidden


class OwnState(WithUnit):
    """Says itself what is pickled."""

    def __reduce__(self) -> Any:
        make, made_of, state = super().__reduce__()  # pyright: ignore[reportAssignmentType]
        return make, made_of, (*state, f"{self.unit}, of its own")

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[:-1])  # pyright: ignore[reportArgumentType]
        self.unit = state[-1]


class MaskedWithUnit(ma.MaskedArray):
    unit: Any


class MapWithUnit(numpy.memmap):
    unit: Any


def with_unit(kind: Any, unit: Any = "m", size: int = 6) -> Any:
    made: Any = numpy.arange(float(size)).view(kind)
    made.unit = unit
    return made


@pytest.mark.parametrize("kind", [WithUnit, WithSlots, MaskedWithUnit, MapWithUnit])
@pytest.mark.parametrize("size", [0, 6, SEGMENT_FROM])
def test_an_attribute_travels(kind: Any, size: int) -> None:
    made = with_unit(kind, {"of": ["m"]}, size)
    back = travelled(made)
    assert type(back) is kind
    assert back.unit == {"of": ["m"]}
    assert numpy.array_equal(numpy.asarray(back), numpy.asarray(made))


def test_an_attribute_travels_inside_of_other_values_once() -> None:
    made = with_unit(WithUnit)
    made.unit = owner = [made]  # refers back to the array
    back = travelled({"a": [made, made], "owner": owner})
    assert back["a"][0] is back["a"][1]
    assert back["a"][0].unit is back["owner"]
    assert back["owner"][0] is back["a"][0]


def test_an_attribute_in_a_private_slot_travels() -> None:
    made = with_unit(WithSlots)
    made.hide(3)
    assert travelled(made).hidden() == 3


def test_a_class_that_says_what_is_pickled_is_left_alone() -> None:
    assert travelled(with_unit(OwnState)).unit == "m, of its own"


def test_a_view_of_a_value_that_travelled_has_its_attribute() -> None:
    assert travelled(with_unit(WithUnit))[2:].unit == "m"


@pytest.mark.parametrize(
    "made",
    [
        ma.array(numpy.arange(6), mask=[False, True] * 3, hard_mask=True),
        ma.array(numpy.arange(6.0), fill_value=3, hard_mask=True),
        ma.array(
            [(1, 2.0)] * 2,
            mask=[(False, True)] * 2,
            dtype=[("a", "i1"), ("b", "f8")],
            hard_mask=True,
        ),
        ma.array(["a", "b"], mask=[True, False], fill_value="?", hard_mask=True),
        ma.array([None, 1], mask=[True, False], dtype=object, hard_mask=True),
        ma.array(numpy.arange(6).view(numpy.memmap), mask=[False, True] * 3, hard_mask=True),
        ma.array(numpy.ones(SEGMENT_FROM), mask=False, hard_mask=True),
    ],
    ids=["numbers", "no mask", "fields", "text", "objects", "memory map", "large"],
)
def test_a_hard_mask_stays_hard(made: Any) -> None:
    back = travelled(made)
    assert back.hardmask
    assert ma.getmaskarray(back).tolist() == ma.getmaskarray(made).tolist()
    assert back.filled().tolist() == made.filled().tolist()
    assert back.fill_value == made.fill_value
    if made.dtype.names is None:  # numpy cannot assign to the others
        back[:1] = made.data[-1:]
    assert ma.getmaskarray(back).tolist() == ma.getmaskarray(made).tolist()


def test_an_array_without_a_mask_gets_none() -> None:
    assert travelled(ma.array([1, 2])).mask is ma.nomask
    assert travelled(ma.array([1, 2], mask=[False, False])).mask.tolist() == [False, False]


def test_what_views_of_a_masked_array_inherit_travels() -> None:
    made = ma.array(with_unit(WithUnit), mask=[False, True] * 3, hard_mask=True)
    back = travelled(made)
    assert back.unit == back[1:].unit == "m"
    assert back.baseclass is WithUnit


@pytest.mark.parametrize("name", ["C order", "Fortran order", "read-only", "permuted"])
@pytest.mark.parametrize("size", [24, SEGMENT_FROM * 3])
def test_plain_arrays_keep_their_layout_and_flags(name: str, size: int) -> None:
    made = numpy.arange(size, dtype="f8").reshape(2, 3, -1)
    if name == "Fortran order":
        made = numpy.asfortranarray(made)
    elif name == "permuted":
        made = made.transpose(1, 0, 2)
    made.flags.writeable = name != "read-only"
    back = travelled(made)
    assert back.flags.writeable == made.flags.writeable
    # numpy 1 itself gives axes that were exchanged the order of C.
    kept = pickle.loads(pickle.dumps(made, 5)) if name == "permuted" else made
    assert back.strides == kept.strides
    assert numpy.array_equal(back, made)
