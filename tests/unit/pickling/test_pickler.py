"""Pickling: what travels by reference, by value, or beside the pickle; all of it arrives equal."""

from __future__ import annotations

import linecache
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._src.pickling import pickler
from monarch._src.pickling.pickler import LARGEST_PLAIN, dumps, is_atom, loads
from monarch._src.wire import memory_copies as memory
from monarch._src.wire.frames import Payload
from monarch._src.wire.segment_refs import SEGMENT_FROM
from tests.support.payloads import buffers_of

LARGE = b"large" * SEGMENT_FROM


def over_the_wire(payload: Payload) -> Payload:
    """The same bytes in other memory, writable, as they come off a socket."""
    return Payload(bytes(payload.body), [memoryview(bytearray(b)) for b in buffers_of(payload)])


def travelled(value: Any, **options: Any) -> Any:
    return loads(over_the_wire(dumps(value, **options)))


# --- two paths, one meaning -----------------------------------------------------------------------

atoms = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.binary(max_size=8) | st.complex_numbers(allow_nan=False)
)  # fmt: skip
keys = st.integers() | st.text(max_size=4) | st.booleans() | st.none()
trees = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=12,
)


def shape(value: Any) -> Any:
    """Types all the way down, which `==` alone would not tell apart (1, 1.0 and True)."""
    if isinstance(value, (list, tuple)):
        return type(value), [shape(item) for item in value]
    if isinstance(value, dict):
        return dict, [(shape(k), shape(v)) for k, v in value.items()]
    return type(value)


@given(trees)
def test_builtin_values_arrive_equal_and_of_the_same_types(value: Any) -> None:
    arrived = travelled(value)
    assert arrived == value
    assert shape(arrived) == shape(value)


@given(trees)
def test_the_short_path_and_the_full_one_give_the_same(value: Any) -> None:
    short = travelled(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickler, "_which", lambda value: pickler._FULL)
        full = travelled(value)
    assert short == full
    assert shape(short) == shape(full)


@given(trees)
def test_the_short_path_is_taken_for_nothing_that_pickle_could_not_carry(value: Any) -> None:
    if pickler._which(value) != pickler._FULL:
        assert pickle.loads(pickle.dumps(value, 5)) == value


@pytest.mark.parametrize("count", [LARGEST_PLAIN, LARGEST_PLAIN + 1, 10 * LARGEST_PLAIN])
def test_containers_of_many_and_of_few_arrive_alike(count: int) -> None:
    values = (list(range(count)), {str(n): n for n in range(count)}, tuple(range(count)))
    assert travelled(values) == values


class SubInt(int):
    def __reduce__(self) -> Any:
        return str, ("not a number any more",)


@pytest.mark.parametrize("value", [SubInt(1), [SubInt(1)], {"a": SubInt(1)}, {SubInt(1): 1}])
def test_a_subclass_of_a_builtin_takes_the_full_path(value: Any) -> None:
    assert pickler._which(value) == pickler._FULL


def test_what_is_one_object_here_is_one_object_there() -> None:
    shared: list[int] = []
    a, b = travelled((shared, shared))
    assert a is b
    a, b = travelled((shared, {"deep": [shared]}))
    assert a is b["deep"][0]


def test_a_cycle_survives() -> None:
    loop: list[Any] = []
    loop.append(loop)
    arrived = travelled(loop)
    assert arrived[0] is arrived


# --- by reference and by value --------------------------------------------------------------------

CELL = "<cell 1 of a notebook>"
SOURCE = """\
import math

def area(radius):
    return math.pi * checked(radius) ** 2

def checked(radius):
    if radius < 0:
        raise ValueError(f"a radius of {radius}")
    return radius

class Disc:
    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return area(self.radius)
"""


@pytest.fixture
def cell() -> Iterator[dict[str, Any]]:
    """The names that a notebook cell has defined, its text known to `linecache` as IPython does."""
    linecache.cache[CELL] = len(SOURCE), None, SOURCE.splitlines(keepends=True), CELL  # type: ignore[assignment]
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, CELL, "exec"), names)
    yield names
    linecache.cache.pop(CELL, None)


def source_of(filename: str) -> str | None:
    return "".join(linecache.getlines(filename)) or None


def test_what_can_be_imported_travels_as_its_name() -> None:
    payload = dumps((traceback.format_exc, Path, over_the_wire), source_of)
    assert len(payload.body) < 200
    assert loads(payload) == (traceback.format_exc, Path, over_the_wire)


def test_what_a_cell_defines_travels_whole(cell: dict[str, Any]) -> None:
    area = travelled(cell["area"])
    assert isinstance(area, FunctionType)
    assert area is not cell["area"]
    assert area(1) == pytest.approx(3.14159, abs=1e-4)
    disc = travelled(cell["Disc"](2))
    assert type(disc).__name__ == "Disc"
    assert disc.area() == cell["Disc"](2).area()


def test_lambdas_and_closures_travel() -> None:
    offset = 3
    assert travelled(lambda x: x + offset)(4) == 7


def test_what_a_cell_defines_brings_its_source(cell: dict[str, Any]) -> None:
    kept: dict[str, str] = {}
    payload = dumps((cell["Disc"], (2,)), source_of)
    loads(over_the_wire(payload), kept.update)
    assert kept == {CELL: SOURCE}


def test_code_keeps_its_file_line_and_nested_functions_under_any_release_of_cloudpickle(
    cell: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_the_file(code: CodeType) -> Any:
        raise AssertionError(f"the pickler asked cloudpickle to reduce {code}")

    monkeypatch.setitem(cloudpickle.Pickler._dispatch_table, CodeType, without_the_file)

    def nested(scale: float) -> Callable[[float], float]:
        def scaled(value: float, *, bias: float = 1.0) -> float:
            try:
                return value * scale + bias
            finally:
                assert scale

        return scaled

    here = nested.__code__
    there = travelled(nested).__code__
    assert there == here  # names, constants, byte code, first line and exception table
    assert there.co_filename == here.co_filename == __file__
    assert list(there.co_lines()) == list(here.co_lines())
    assert travelled(nested)(2.0)(3.0) == 7.0
    assert travelled(nested(2.0))(3.0, bias=0.0) == 6.0
    assert travelled(cell["Disc"]).area.__code__.co_filename == CELL


class Fails:
    """Rebuilt by calling a function of the cell, which raises."""

    def __init__(self, cell: dict[str, Any]) -> None:
        self.rebuild = cell["checked"]

    def __reduce__(self) -> Any:
        return self.rebuild, (-1,)


def test_sources_are_kept_before_anything_is_rebuilt(cell: dict[str, Any]) -> None:
    kept: dict[str, str] = {}
    with pytest.raises(ValueError, match="a radius of -1"):
        loads(dumps(Fails(cell), source_of), kept.update)
    assert CELL in kept


def test_an_object_of_a_module_brings_no_source() -> None:
    kept: dict[str, str] = {}
    loads(dumps(over_the_wire, source_of), kept.update)
    assert kept == {}


def test_a_file_whose_text_nobody_has_is_left_out(cell: dict[str, Any]) -> None:
    kept: dict[str, str] = {}
    assert loads(dumps(cell["checked"], lambda _: None), kept.update)(3) == 3
    assert kept == {}


def test_a_payload_with_sources_can_be_read_without_keeping_them(cell: dict[str, Any]) -> None:
    assert loads(dumps(cell["checked"], source_of))(3) == 3


READ_AND_FAIL = """
import sys, traceback
from monarch._src.actor.serialize import unpack_value
from monarch._src.wire.frames import Payload
area = unpack_value(Payload(open(sys.argv[1], "rb").read()))
try:
    area(-1)
except ValueError:
    print(traceback.format_exc())
"""


def test_a_traceback_in_another_process_shows_the_text_of_the_cell(
    cell: dict[str, Any], tmp_path: Path, run_python: Callable[..., str]
) -> None:
    (tmp_path / "area").write_bytes(dumps(cell["area"], source_of).body)
    shown = run_python(READ_AND_FAIL, str(tmp_path / "area"))
    assert f'File "{CELL}", line 4, in area\n    return math.pi * checked(radius) ** 2' in shown
    assert f'File "{CELL}", line 8, in checked\n    raise ValueError' in shown


# --- beside the pickle ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, SEGMENT_FROM - 1, SEGMENT_FROM, 10 * SEGMENT_FROM])
def test_bytes_of_any_size_arrive_as_bytes(size: int) -> None:
    data = b"x" * size
    for value in (data, (data,), {"a": data}, [data]):
        for own in (0, 1, 2):
            arrived = travelled(value, own=own)
            assert arrived == value
            assert shape(arrived) == shape(value)


@pytest.mark.parametrize("value", [(LARGE,), ((LARGE, 1), {}), ((), {"data": LARGE})])
def test_large_bytes_among_the_arguments_are_sent_as_they_stand(value: Any) -> None:
    payload = dumps(value, own=2)
    assert len(payload.body) < 200
    (buffer,) = payload.buffers
    assert isinstance(buffer, memoryview)
    assert buffer.obj is LARGE


def test_large_bytes_that_are_passed_twice_are_sent_once() -> None:
    payload = dumps(((LARGE, LARGE), {"again": LARGE}), own=2)
    assert len(payload.buffers) == 1
    args, kwargs = loads(over_the_wire(payload))
    assert args == (LARGE, LARGE)
    assert kwargs == {"again": LARGE}


def test_a_container_with_large_bytes_stays_one_object() -> None:
    table = {"data": LARGE}
    a, b = travelled((table, table))
    assert a is b
    args, _ = travelled(((table, [table]), {}), own=2)
    assert args[0] is args[1][0]


def test_a_container_with_large_bytes_may_contain_itself() -> None:
    table: dict[str, Any] = {"data": LARGE}
    table["self"] = table
    arrived = travelled(table)
    assert arrived["self"] is arrived
    args, _ = travelled(((table,), {}), own=2)
    assert args[0]["self"] is args[0]


def test_small_arrays_travel_in_the_pickle_and_large_ones_beside_it() -> None:
    small, large = np.zeros(SEGMENT_FROM - 1, np.uint8), np.zeros(SEGMENT_FROM, np.uint8)
    assert len(dumps(small).buffers) == 0
    assert len(dumps(large).buffers) == 1


ARRAYS = {
    "rows": np.arange(4096.0).reshape(64, 64),
    "columns": np.asfortranarray(np.arange(4096.0).reshape(64, 64)),
    "every other": np.arange(8192.0)[::2],
    "backwards": np.arange(4096.0)[::-1],
    "empty": np.zeros((0, 5)),
    "small": np.arange(3),
    "objects": np.array([{"a": 1}, None, "text"] * 1000, dtype=object),
    "no dims": np.array(1.5),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_layout_arrive_equal_and_can_be_written_to(name: str) -> None:
    array = ARRAYS[name]
    arrived = travelled(array)
    assert arrived.dtype == array.dtype
    np.testing.assert_array_equal(arrived, array)
    assert arrived.flags.writeable


@given(st.integers(0, memory.LARGE + 3 * memory.STEP), st.integers(0, 255), st.integers(1, 251))
@settings(max_examples=10)
def test_a_copy_of_memory_is_equal_and_apart(size: int, first: int, step: int) -> None:
    original = (np.arange(size, dtype=np.uint32) * step + first).astype(np.uint8)
    copy = memory.copied(original.data)
    found = np.frombuffer(copy, np.uint8)
    np.testing.assert_array_equal(found, original)
    original += 1
    assert size == 0 or found[0] == first % 256
    assert found.flags.writeable


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_on_the_short_path_and_on_the_full_one_are_the_same(name: str) -> None:
    value = (ARRAYS[name], {"key": [1, ARRAYS[name]]}, bytearray(LARGE))
    short = dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickler, "_which", lambda value: pickler._FULL)
        full = dumps(value)
    assert len(short.buffers) == len(full.buffers)
    for payload in (short, full):
        first, table, data = loads(over_the_wire(payload))
        assert table["key"][1] is first
        np.testing.assert_array_equal(first, ARRAYS[name])
        assert data == LARGE


class Noted(np.ndarray):
    """An array that says itself how it is pickled."""

    def __reduce__(self) -> Any:
        return str, ("an array",)


def test_arrays_of_other_classes_and_of_objects_are_pickled_as_they_say() -> None:
    noted = np.zeros(3).view(Noted)
    assert travelled([noted]) == ["an array"]
    offset = 3
    (function,) = travelled(np.array([lambda x: x + offset]))
    assert function(4) == 7


@pytest.mark.parametrize("size", [8, 1 << 16])
def test_a_read_only_array_stays_read_only(size: int) -> None:
    array = np.arange(size)
    array.setflags(write=False)
    arrived = travelled(array)
    assert arrived.flags.writeable == array.flags.writeable
    np.testing.assert_array_equal(arrived, array)


@pytest.mark.parametrize("size", [8, 1 << 16, memory.LARGE - 1, memory.LARGE + memory.STEP + 3])
def test_what_is_changed_after_the_call_is_not_changed_in_the_message(size: int) -> None:
    array = np.ones(size, np.uint8)
    payload = dumps(((array,), {}), own=2)
    array[:] = 0
    (arrived,), _ = loads(payload)
    assert arrived.sum() == size


def test_an_array_that_goes_to_the_same_process_is_not_the_same_array() -> None:
    array = np.zeros(1 << 16)
    arrived = loads(dumps(array))
    arrived[:] = 1
    assert array.sum() == 0


@pytest.mark.parametrize("seen", [LARGE, memoryview(LARGE), memoryview(memoryview(LARGE))[5:]])
def test_an_array_that_cannot_change_is_sent_as_it_stands(seen: Any) -> None:
    array = np.frombuffer(seen, np.uint8)
    for shown in (array, array[7:], array.view(np.int8)[:SEGMENT_FROM]):
        (buffer,) = buffers_of(dumps(shown))
        assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)


def test_one_that_is_only_shown_read_only_can_change_and_is_copied() -> None:
    memory = np.ones(SEGMENT_FROM)
    shown = memory.view()
    shown.setflags(write=False)
    exported = np.frombuffer(memoryview(bytearray(LARGE)).toreadonly(), np.uint8)
    payload = dumps([shown, exported])
    memory[:] = 0
    base: Any = exported.base
    base.obj[:] = bytes(len(LARGE))
    first, second = loads(payload)
    assert first.sum() == SEGMENT_FROM
    assert second.tobytes() == LARGE
    assert not first.flags.writeable


def test_every_buffer_is_flat_whatever_the_layout_of_its_array() -> None:
    base = np.zeros((64, 32, 32))
    arrays = [base, np.asfortranarray(base), base.astype("i2"), base.astype("c16"), base.T]
    for buffer in buffers_of(dumps(arrays)):
        view = memoryview(buffer)
        assert (view.ndim, view.format, view.nbytes) == (1, "B", len(buffer))


# --- within one process ---------------------------------------------------------------------------


def test_bytes_that_go_to_the_same_process_are_not_copied() -> None:
    args, kwargs = loads(dumps(((LARGE,), {"again": LARGE}), own=2).own())
    assert args[0] is kwargs["again"] is LARGE


def test_arrays_that_go_to_the_same_process_belong_to_who_gets_them() -> None:
    payload = dumps([np.zeros(SEGMENT_FROM), np.frombuffer(LARGE, np.uint8)])
    (mine, shown), (others, _) = loads(payload.own()), loads(payload.own())
    mine += 1
    assert others.sum() == 0
    assert not shown.flags.writeable


# --- atoms ----------------------------------------------------------------------------------------


@given(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.binary(max_size=300) | st.sampled_from(["x" * 5000, b"x" * 5000, 1 << 2000])
)  # fmt: skip
def test_the_pickle_of_an_atom_is_known_as_one(value: Any) -> None:
    assert is_atom(dumps(value))
    assert is_atom(over_the_wire(dumps(value)))


@given(trees)
def test_what_is_taken_for_an_atom_is_one(value: Any) -> None:
    if is_atom(dumps(value)):
        assert type(value) in (type(None), bool, int, float, str, bytes)


@pytest.mark.parametrize(
    "value", [[1], (1,), (1, 2), {}, [], (), {1: 2}, [b"x"], ["", "b"], 1j, {1}, LARGE, int,
              (1, "x" * 100_000)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_could_be_changed_in_place_is_no_atom(value: Any) -> None:
    assert not is_atom(dumps(value, own=2))


@given(st.binary(max_size=40))
def test_whatever_the_bytes_to_ask_whether_they_are_an_atom_raises_nothing(body: bytes) -> None:
    assert is_atom(Payload(b"\x80\x05" + body)) in (True, False)
    assert is_atom(Payload(body)) in (True, False)


# --- unpicklable values ---------------------------------------------------------------------------


def test_what_is_nested_too_deeply_raises_what_pickle_raises() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(pickle.PicklingError, match="recursion"):
        dumps(deep)
    while deep:
        deep = deep[0]


def test_a_message_without_its_payload_is_told_as_such() -> None:
    with pytest.raises(pickle.UnpicklingError, match="without its payload"):
        loads(Payload(b""))


def test_what_cannot_be_pickled_raises_what_pickle_raises() -> None:
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        dumps([(i for i in range(3))])


class LazyModule(ModuleType):
    """A module of a class of its own, as torch.backends.cudnn and the package transformers."""


def test_an_imported_module_of_any_class_travels_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = LazyModule("lazy_module")
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    payload = dumps({"module": module})
    assert loads(payload)["module"] is module
