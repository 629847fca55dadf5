"""Each kind of value comes back from a cut and a join as it was, or is refused in one line.

The parts are pickled between, as on their way to a rank and back.
"""

from __future__ import annotations

import array
import warnings
from collections import OrderedDict, UserList, deque, namedtuple
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy
import pandas
import pytest
import torch
from numpy import ma
from numpy.ma import mrecords

from monarch._src.mesh.namespace.rows import KINDS, cut, join
from monarch._src.pickling.pickler import dumps, loads
from monarch._src.wire.frames import decode, encode
from monarch._src.wire.messages import Call

sparse: Any = pytest.importorskip("scipy.sparse")
CALL = Call(1, 2, "receive", 0, [], [])
Point = namedtuple("Point", "x y")
NUMBERS = numpy.arange(24.0).reshape(6, 4)
RECORD = numpy.dtype([("a", "i1"), ("b", "f8")], align=True)
BERLIN = pandas.date_range("2026-03-28 20:00", periods=6, freq="h", tz="Europe/Berlin", name="t")


def place(at: int) -> str:
    return f"workers[gpus={at}]"


def travelled(value: Any) -> Any:
    frames = [memoryview(bytearray(frame)) for frame in encode(CALL, dumps(value))]
    return loads(decode(frames)[1])


def there_and_back(value: Any, parts: int = 3) -> Any:
    cuts = [travelled(part) for part in cut("x", value, parts)]
    return join("x", [travelled(part) for part in cuts], place)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    text = str(raised.value)
    assert "\n" not in text
    assert ", or p" in text, "names the way out"
    return text


# --- subclasses -----------------------------------------------------------------------------------


class Bare(numpy.ndarray):
    """Adds methods only."""

    def double(self) -> Any:
        return self * 2


class WithUnit(numpy.ndarray):
    """Hands an attribute on to its views, but has no rule for concatenation."""

    unit: str | None

    def __array_finalize__(self, obj: Any) -> None:
        self.unit = getattr(obj, "unit", None)


class WithRule(WithUnit):
    """Concatenates values of one unit."""

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is not numpy.concatenate:
            return super().__array_function__(func, types, args, kwargs)
        units = {one.unit for one in args[0]}
        if len(units) > 1:
            raise ValueError(f"the units {sorted(units)} differ")
        made = numpy.concatenate([one.view(numpy.ndarray) for one in args[0]]).view(WithRule)
        made.unit = units.pop()
        return made


class WithSlot(numpy.ndarray):
    __slots__ = ("unit",)


class BareMasked(ma.MaskedArray):
    """Adds nothing."""


class BareTensor(torch.Tensor):
    """Adds nothing."""


class OwnParameter(torch.nn.Parameter):
    """A slice of it is a plain tensor."""


class OwnFrame(pandas.DataFrame):
    _metadata = ("source",)  # pyright: ignore[reportAssignmentType]

    @property
    def _constructor(self) -> Any:
        return OwnFrame


class LostFrame(pandas.DataFrame):
    """Without `_constructor`: slices are plain data frames."""


class OwnList(list[Any]):
    pass


def with_unit(kind: Any, unit: Any = "m") -> Any:
    made = NUMBERS.copy().view(kind)
    made.unit = unit
    return made


# --- values that come back ------------------------------------------------------------------------


def masked(**options: Any) -> Any:
    return ma.array(NUMBERS, mask=NUMBERS % 5 == 0, **options)


def hard() -> Any:
    made = masked(fill_value=-7.0)
    made.harden_mask()
    return made


def with_info() -> Any:
    made: Any = ma.array(NUMBERS.view(numpy.matrix), mask=NUMBERS > 20)
    made._optinfo["unit"] = made.unit = "m"
    return made


ARRAYS: dict[str, Any] = {
    "bool": NUMBERS > 3,
    "little and big endian": NUMBERS.astype(">f4"),
    "complex": NUMBERS * 1j,
    "longdouble": NUMBERS.astype(numpy.longdouble),
    "seconds": numpy.arange(6).astype("M8[25s]"),
    "durations": numpy.arange(6).astype("m8[ns]"),
    "not a time": numpy.array(["NaT"] * 6, "M8[D]"),
    "bytes": numpy.array([b"a", b"bcd", b""] * 2),
    "void": numpy.arange(6, dtype="u4").view("V4"),
    "metadata": NUMBERS.astype(numpy.dtype("f8", metadata={"unit": "m"})),
    "three axes": numpy.arange(60).reshape(6, 5, 2).transpose(0, 2, 1),
    "Fortran order": numpy.asfortranarray(NUMBERS),
    "backwards": NUMBERS[::-1, ::-2],
    "broadcast": numpy.broadcast_to(numpy.arange(4), (6, 4)),
    "one column": NUMBERS[:, :1],
    "nested objects": numpy.array([{"a": numpy.arange(2)}, [], None, 1, "x", ()], dtype=object),
    "large": numpy.arange(6 * 40000.0).reshape(6, 40000),
    "aligned records": numpy.zeros(6, RECORD),
    "records with titles": numpy.zeros(6, [(("a title", "a"), "i4"), ("b", "U3")]),
    "records of arrays": numpy.zeros(6, [("a", "i4", (2, 3))]),
    "records in records": numpy.zeros(6, [("a", [("b", "M8[D]"), ("c", "O")])]),
    "records of two axes": numpy.zeros((6, 2), RECORD),
}
SUBCLASSES: dict[str, Any] = {
    "recarray": numpy.rec.array([(1, 2.0)] * 6, dtype=[("a", "i4"), ("b", "f8")]),
    "recarray of text": numpy.rec.array([("a", b"b")] * 6, dtype=[("a", "U4"), ("b", "S2")]),
    "recarray of two axes": numpy.zeros((6, 2), RECORD).view(numpy.recarray),
    "empty recarray": numpy.zeros(0, RECORD).view(numpy.recarray),
    "aligned recarray": numpy.zeros(6, RECORD).view(numpy.recarray),
    "matrix": NUMBERS.view(numpy.matrix),
    "matrix of bool": NUMBERS.view(numpy.matrix) > 3,
    "matrix of one column": NUMBERS.view(numpy.matrix)[:, 1],
    "matrix without rows": numpy.zeros((0, 3)).view(numpy.matrix),
    "matrix of objects": numpy.array([[None, 1]] * 6, dtype=object).view(numpy.matrix),
    "chararray": numpy.char.array(["a ", "bb", ""] * 2),
    "chararray of bytes": numpy.char.array([b"a", b"bb"] * 3),
    "chararray of two axes": numpy.char.array([["a", "b"]] * 6),
    "chararray without rows": numpy.char.array(["a"] * 3)[:0],
    "wide chararray": numpy.char.array(["a"] * 6, itemsize=9),
    "subclass": NUMBERS.view(Bare),
    "subclass of integers": NUMBERS.astype("i2").view(Bare),
    "subclass of text": numpy.array(list("abcdef")).view(Bare),
    "subclass of records": numpy.zeros(6, RECORD).view(Bare),
    "subclass without rows": NUMBERS[:0].view(Bare),
    "large subclass": numpy.arange(6 * 40000.0).view(Bare),
}
MASKED: dict[str, Any] = {
    "masked": masked(),
    "nothing masked": ma.array(NUMBERS),
    "all masked": ma.masked_all((6, 2)),
    "own fill_value": masked(fill_value=3.5),
    "fill_value NaN": masked(fill_value=numpy.nan),
    "hard mask": hard(),
    "masked int8": ma.array(numpy.arange(6, dtype="i1"), mask=[False, True] * 3, fill_value=9),
    "masked text": ma.array(["a", "bb", "ccc"] * 2, mask=[False, False, True] * 2),
    "masked dates": ma.array(numpy.arange(6).astype("M8[D]"), mask=[True, False, False] * 2),
    "masked objects": ma.array([None, 1, "x"] * 2, mask=[True, False, False] * 2, dtype=object),
    "masked fields": ma.array(
        [(1, 2.0)] * 6, mask=[(False, True), (True, False)] * 3, dtype=RECORD
    ),
    "masked matrix": ma.array(NUMBERS.view(numpy.matrix), mask=NUMBERS > 3),
    "masked recarray": ma.array(
        numpy.zeros(6, RECORD).view(numpy.recarray), mask=[(False, True)] * 6
    ),
    "masked, with info": with_info(),
    "masked without rows": masked()[:0],
    "masked memory map": ma.array(NUMBERS.view(numpy.memmap), mask=NUMBERS > 3),
    "masked subclass": masked().view(BareMasked),
    "masked in Fortran order": ma.array(numpy.asfortranarray(NUMBERS), mask=NUMBERS > 3),
}
SPARSE: dict[str, Any] = {
    f"{form}_{kind}": getattr(sparse, f"{form}_{kind}")(numpy.eye(6, 4, 1, dtype=dtype))
    for form, dtype in (("csr", "f8"), ("csc", "i2"), ("coo", "f4"), ("lil", "c8"), ("dok", "f8"))
    for kind in ("matrix", "array")
}
PANDAS: dict[str, Any] = {
    "frame of many dtypes": pandas.DataFrame({"a": range(6), "b": list("abcabc"), "c": 0.5}),
    "named series": pandas.Series(range(6), name="loss", dtype="i1"),
    "series without name": pandas.Series(range(6)),
    "named index": pandas.DataFrame({"a": range(6)}, index=pandas.Index(list("uvwxyz"), name="k")),
    "named columns": pandas.DataFrame({"a": range(6)}).rename_axis(columns="c"),
    "columns of levels": pandas.DataFrame(
        NUMBERS, columns=pandas.MultiIndex.from_product([["a", "b"], [1, 2]], names=["k", None])
    ),
    "index of time zones": pandas.DataFrame({"a": range(6)}, index=BERLIN),
    "index of categories": pandas.Series(range(6), index=pandas.CategoricalIndex(list("abcabc"))),
    "level of categories": pandas.Series(
        range(6), index=pandas.MultiIndex.from_arrays([pandas.Categorical(list("abcabc")), BERLIN])
    ),
    "nullable": pandas.DataFrame({"a": pandas.array([True, None] * 3), "b": pandas.NA}),
    "unused categories": pandas.Series(pandas.Categorical(["a"] * 6, list("xya"), ordered=True)),
    "intervals": pandas.Series(pandas.interval_range(0, 6)),
    "durations": pandas.Series(pandas.to_timedelta(range(6), unit="s")),
    "equal columns": pandas.DataFrame([[1, "x"]] * 6, columns=["a", "a"], index=[3] * 6),
    "column NaN": pandas.DataFrame([[1, 2]] * 6, columns=[float("nan"), "a"]),
    "no columns": pandas.DataFrame(index=range(6)),
    "frame without rows": pandas.DataFrame({"a": pandas.Categorical([])}),
    "attrs of arrays": pandas.DataFrame({"a": range(6)}),
    "no equal labels": pandas.DataFrame({"a": range(6)}).set_flags(allows_duplicate_labels=False),
    "Index": pandas.Index(list("uvwxyz"), name="k"),
    "RangeIndex": pandas.RangeIndex(3, 15, 2, name="k"),
    "DatetimeIndex": BERLIN,
    "MultiIndex": pandas.MultiIndex.from_product([["a", "b"], range(3)], names=["k", "n"]),
    "PeriodIndex": pandas.period_range("2026-01", periods=6, freq="M"),
    "IntervalIndex": pandas.interval_range(0, 6, name="i"),
    "CategoricalIndex": pandas.CategoricalIndex(list("abcabc"), name="c"),
    "Categorical": pandas.Categorical(list("abcabc"), list("cba"), ordered=True),
    "IntegerArray": pandas.array([1, None, 3] * 2, dtype="Int8"),
    "DatetimeArray": BERLIN.array,
    "SparseArray": pandas.arrays.SparseArray([0, 1, 0] * 2),
    "StringArray": pandas.array(["a", None] * 3, dtype="string"),
}
PANDAS["attrs of arrays"].attrs = {"weights": numpy.arange(3), "none": float("nan")}
COMPLEX = torch.arange(6.0) * (1 + 2j)
TENSORS: dict[str, Any] = {
    "float8": torch.arange(6.0).to(torch.float8_e4m3fn),
    "uint16": torch.arange(6).to(torch.uint16),
    "conjugate": COMPLEX.conj(),
    "negative": COMPLEX.conj().imag,
    "channels last": torch.rand(6, 2, 3, 3).contiguous(memory_format=torch.channels_last),
    "expanded": torch.ones(1, 4).expand(6, 4),
    "with history": torch.ones(6, requires_grad=True) * 2,
    "leaf": torch.ones(6, 2, requires_grad=True),
    "made for inference": torch.inference_mode()(torch.ones)(6, 2),
    "no rows": torch.zeros(0, 3, dtype=torch.int8),
    "large tensor": torch.arange(6 * 40000),
    "Parameter": torch.nn.Parameter(torch.arange(12.0).reshape(6, 2)),
    "frozen Parameter": torch.nn.Parameter(torch.ones(6), requires_grad=False),
    "large Parameter": torch.nn.Parameter(torch.rand(6, 40000)),
    "Parameter of bfloat16": torch.nn.Parameter(torch.ones(6, dtype=torch.bfloat16)),
    "Parameter without rows": torch.nn.Parameter(torch.ones(0, 2)),
    "tensor subclass": torch.arange(6.0).as_subclass(BareTensor),
}
SEQUENCES: dict[str, Any] = {
    "list of arrays": [NUMBERS, [1], None, "x", {}, ()],
    "tuple of text": ("a", "b", "c") * 2,
    "empty tuple": (),
    "range": range(6),
    "range with steps": range(10, -2, -2),
    "empty range": range(3, 3),
    "bytes": b"abcdef",
    "bytearray": bytearray(b"abcdef"),
    "array of shorts": array.array("h", range(6)),
    "array of doubles": array.array("d", range(6)),
    "array of nothing": array.array("q"),
}
ALL = ARRAYS | SUBCLASSES | MASKED | SPARSE | PANDAS | TENSORS | SEQUENCES


def contents(value: Any) -> Any:
    """Plain data that is equal for values that a program cannot tell apart."""
    facts: list[Any] = [type(value)]
    if isinstance(value, numpy.ndarray):
        if isinstance(value, ma.MaskedArray):
            facts += [
                ma.getmaskarray(value).tolist(), repr(value.fill_value), value.hardmask,
                value.baseclass, vars(value)["_optinfo"].get("unit"),
            ]  # fmt: skip
        facts += [value.dtype, value.dtype.metadata, value.dtype.isalignedstruct, value.dtype.type]
        shown = value.filled() if isinstance(value, ma.MaskedArray) else value
        return [*facts, value.shape, repr(shown.tolist()), getattr(value, "unit", None)]
    if isinstance(value, torch.Tensor):
        shown = value.detach().to(torch.float64) if "float8" in str(value.dtype) else value
        return [*facts, value.dtype, value.requires_grad, value.is_leaf, shown.tolist()]
    if sparse.issparse(value):
        return [*facts, value.dtype, value.shape, value.nnz, value.toarray().tolist()]
    return [*facts, value if isinstance(value, range) else repr(value)]


@pytest.mark.parametrize("name", ALL)
def test_what_is_cut_and_joined_comes_back_as_it_was(name: str) -> None:
    value = ALL[name]
    back = there_and_back(value)
    if name in PANDAS:
        same: dict[type[Any], Any] = {
            pandas.DataFrame: pandas.testing.assert_frame_equal,
            pandas.Series: pandas.testing.assert_series_equal,
            pandas.Index: pandas.testing.assert_index_equal,
        }
        kind = next((kind for kind in same if isinstance(value, kind)), None)
        if kind is None:
            assert type(back) is type(value)
            pandas.testing.assert_extension_array_equal(back, value)
            return
        same[kind](back, value, **({} if kind is pandas.Index else {"check_freq": True}))
        if kind is not pandas.Index:
            assert repr(back.attrs) == repr(value.attrs)
            assert back.flags == value.flags
        assert type(back) is type(value)
    else:
        wanted = contents(value)
        if isinstance(value, torch.Tensor):
            wanted[3] = True  # a value that has travelled has no history
        assert contents(back) == wanted


def test_each_kind_has_five_examples() -> None:
    examples = [ARRAYS, SUBCLASSES, MASKED, SPARSE, PANDAS, TENSORS, SEQUENCES]
    assert all(len(kind) >= 5 for kind in examples)
    found = {
        next(known for known in names if known in KINDS)
        for value in ALL.values()
        for names in [[
            f"{base.__module__.partition('.')[0]}.{base.__name__}"
            for base in type(value).__mro__
        ]]
    }  # fmt: skip
    assert set(KINDS) - found == {"numpy.MaskedRecords"}


def test_a_memory_map_comes_back_as_one_in_memory(tmp_path: Any) -> None:
    made = numpy.memmap(tmp_path / "numbers", dtype="f8", mode="w+", shape=(6, 2))
    made[:] = 3
    back = there_and_back(made)
    assert type(back) is numpy.memmap
    assert back.filename is None
    assert back.tolist() == made.tolist()


def test_a_subclass_is_joined_by_its_own_rule() -> None:
    back = there_and_back(with_unit(WithRule))
    assert type(back) is WithRule
    assert back.unit == "m"
    assert back.tolist() == NUMBERS.tolist()
    text = refusal(lambda: join("x", [with_unit(WithRule, u) for u in ("m", "s")], place))
    assert text.startswith("pull: x cannot be joined: the units ['m', 's'] differ: ")


def test_joined_gradients_go_to_the_joined_tensor() -> None:
    back = there_and_back(torch.ones(6, requires_grad=True))
    back.sum().backward()
    assert back.grad.tolist() == [1.0] * 6


# --- numbers of different sizes -------------------------------------------------------------------

WIDENED: list[tuple[list[Any], str]] = [
    ([numpy.arange(2, dtype="i1"), numpy.array([1 << 40])], "int64"),
    ([numpy.arange(2, dtype="u1"), numpy.array([1 << 63], dtype="u8")], "uint64"),
    ([numpy.ones(2, dtype="f2"), numpy.array([1e300])], "float64"),
    ([numpy.array(["a"]), numpy.array(["abcdef"]), numpy.array([], dtype="U9")], "<U9"),
    ([numpy.array([b"a"]), numpy.array([b"abcdef"])], "|S6"),
    ([numpy.arange(2, dtype=">i4"), numpy.arange(2, dtype="<i4")], "int32"),
    ([ma.array([1], mask=[True], dtype="i1"), ma.array([1 << 40], mask=[False])], "int64"),
    ([sparse.csr_array(numpy.eye(2, dtype="f4")), sparse.csr_array(numpy.eye(2))], "float64"),
]


@pytest.mark.parametrize(("values", "dtype"), WIDENED)
def test_a_wider_dtype_keeps_the_values_of_all(values: list[Any], dtype: str) -> None:
    back = join("x", values, place)
    assert type(back) is type(values[0])
    assert str(back.dtype) == dtype or back.dtype.str == dtype
    listed = [row for value in values for row in getattr(value, "toarray", lambda v=value: v)()]
    rows = back.toarray() if sparse.issparse(back) else back
    assert rows.tolist() == [row.tolist() for row in listed]


FRAME = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
SERIES = pandas.Series([1, 2], name="a")
DIFFERENT: dict[str, tuple[list[Any], str]] = {
    "int and float": ([numpy.array([1 << 60]), numpy.array([0.5])], "the dtype int64"),
    "int and no floats": ([numpy.arange(2), numpy.array([])], "the dtype int64"),
    "signed or not": ([numpy.array([1]), numpy.array([1], "u8")], "the dtype int64"),
    "number and text": ([numpy.array([1]), numpy.array(["a"])], "the dtype int64"),
    "bool and int": ([numpy.array([True]), numpy.array([2])], "the dtype bool"),
    "units of time": ([numpy.array([1], "M8[D]"), numpy.array([1], "M8[ns]")], "the dtype datet"),
    "fields": ([numpy.zeros(1, [("a", "i4")]), numpy.zeros(1, [("b", "i4")])], "the dtype [('a'"),
    "object and int": ([numpy.array([1], object), numpy.array([1])], "the dtype object"),
    "array and masked": ([numpy.array([1]), ma.array([1])], "the type ndarray"),
    "array and records": ([numpy.zeros(1, RECORD), numpy.zeros(1, RECORD).view(numpy.recarray)],
                          "the type ndarray"),
    "columns of arrays": ([NUMBERS, NUMBERS[:, :2]], "the row shape (4,)"),
    "axes": ([NUMBERS, numpy.array([1.0])], "the row shape (4,)"),
    "fill_value": ([masked(fill_value=1), masked(fill_value=2)], "the fill_value 1.0"),
    "one fill_value": ([masked(), masked(fill_value=2)], "the fill_value 1e+20"),
    "hard mask": ([masked(), ma.array(NUMBERS, hard_mask=True)], "the hard mask False"),
    "masked data": ([ma.array(NUMBERS.view(numpy.matrix)), ma.array(NUMBERS)],
                    "the type of data matrix"),
    "sparse format": ([sparse.csr_array(NUMBERS), sparse.csc_array(NUMBERS)], "the type csr_array"),
    "sparse dtype": ([sparse.csr_array([[1]]), sparse.csr_array([[0.5]])], "the dtype int64"),
    "sparse columns": ([sparse.csr_array(NUMBERS), sparse.csr_array(NUMBERS[:, :2])], "the row sh"),
    "categories": ([pandas.Series(list(one), dtype="category") for one in ("ab", "bc")],
                   "the dtype CategoricalDtype(categories=['a', 'b'], ordered=False"),
    "time zone": ([pandas.Series(BERLIN), pandas.Series(BERLIN.tz_convert("UTC"), name="t")],
                  "the dtype datetime64[us, Europe/Berlin]"),
    "time zone of index": ([pandas.Series([1], BERLIN[:1]), pandas.Series([1], BERLIN[:1].
                           tz_convert("UTC"))], "the dtype of the index datetime64"),
    "nullable or not": ([SERIES, SERIES.astype("Int64")], "the dtype int64"),
    "dtype of a column": ([FRAME, FRAME.assign(a=0.5)], "the dtype of column 'a' int64"),
    "columns": ([FRAME, FRAME.assign(c=1)], "the columns ['a', 'b']"),
    "order of columns": ([FRAME, FRAME[["b", "a"]]], "the columns ['a', 'b']"),
    "an empty frame": ([FRAME, pandas.DataFrame()], "the columns ['a', 'b']"),
    "labels": ([FRAME, FRAME.set_index(pandas.Index(["x", "y"]))], "the dtype of the index int64"),
    "levels": ([FRAME, FRAME.set_index(["a", "b"], drop=False)], "the names of the index [None]"),
    "name of index": ([FRAME, FRAME.rename_axis("k")], "the names of the index [None]"),
    "name of columns": ([FRAME, FRAME.rename_axis(columns="k")], "the names of the columns [None]"),
    "name of series": ([SERIES, SERIES.rename("b")], "the name 'a'"),
    "attrs": ([FRAME, FRAME.copy()], "the attrs {'unit': 'm'}"),
    "flags": ([FRAME, FRAME.set_flags(allows_duplicate_labels=False)], "the flags <Flags(allows"),
    "frame and series": ([FRAME, SERIES], "the type DataFrame"),
    "index names": ([pandas.Index([1], name="a"), pandas.Index([1])], "the names ['a']"),
    "index dtypes": ([pandas.Index([1]), pandas.Index(["a"])], "the dtype int64"),
    "extension dtypes": ([pandas.array([1]), pandas.array([1], dtype="Int8")], "the dtype Int64"),
    "torch dtype": ([torch.arange(2), torch.ones(2)], "the dtype torch.int64"),
    "gradients": ([torch.ones(2), torch.ones(2, requires_grad=True)], "the requires_grad False"),
    "device": ([torch.ones(2), torch.ones(2, device="meta")], "the device cpu"),
    "tensor and parameter": ([torch.ones(2), torch.nn.Parameter(torch.ones(2))], "the type Tensor"),
    "ragged tensors": ([torch.ones(2, 3), torch.ones(2, 4)], "the row shape (3,)"),
    "no tensor": ([torch.ones(2, 3), torch.ones(0)], "the row shape (3,)"),
    "typecodes": ([array.array("i", [1]), array.array("d", [1])], "the typecode i"),
    "list and range": ([[1], range(1)], "the type list"),
    "bytes": ([b"a", bytearray(b"a")], "the type bytes"),
}  # fmt: skip
DIFFERENT["attrs"][0][0] = FRAME.copy()
DIFFERENT["attrs"][0][0].attrs["unit"] = "m"
DIFFERENT["time zone"][0][0] = pandas.Series(BERLIN.as_unit("us"), name="t")


@pytest.mark.parametrize("name", DIFFERENT)
def test_values_that_differ_are_refused_with_both_ranks(name: str) -> None:
    values, text = DIFFERENT[name]
    told = refusal(lambda: join("loss", [values[0], values[0], values[1]], place))
    assert told.startswith(f"pull: loss has {text}")
    assert " on workers[gpus=0] and the " in told
    assert told.endswith(" on workers[gpus=2]: make them equal there, or pull it without join=True")
    for one, other in pairwise([*values, values[0]]):
        refusal(lambda one=one, other=other: join("loss", [one, other], place))


# --- refusals by kind -----------------------------------------------------------------------------


def slotted() -> Any:
    return with_unit(WithSlot)


def quiet(make: Callable[[], Any]) -> Any:
    """What torch warns of, as not finished or old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def attributed(tensor: Any) -> Any:
    tensor.unit = "m"
    return tensor


REFUSED: dict[str, tuple[Any, str]] = {
    "no array": (numpy.array(3.0), "is of type ndarray and has no rows"),
    "numpy scalar": (numpy.float32(3), "is of type float32 and has no rows"),
    "one record": (numpy.zeros(1, RECORD)[0], "is of type void and has no rows"),
    "no masked array": (ma.array(3.0, mask=True), "is of type MaskedArray and has no rows"),
    "masked": (ma.masked, "is of type MaskedConstant and has no rows"),
    "no tensor": (torch.tensor(1), "is of type Tensor and has no rows"),
    "attribute of an array": (with_unit(WithUnit), "of type WithUnit, has attributes (unit)"),
    "attribute None": (with_unit(WithUnit, None), "of type WithUnit, has attributes (unit) for"),
    "attribute in a slot": (slotted(), "of type WithSlot, has attributes (unit) for"),
    "attribute of a bare class": (attributed(NUMBERS.view(Bare)), "of type Bare, has attributes"),
    "attribute of a masked array": (attributed(masked()), "of type MaskedArray, has attributes"),
    "attribute of masked data": (ma.array(with_unit(WithUnit), subok=True), "of type MaskedArray"),
    "attribute of a tensor": (attributed(torch.ones(6)), "of type Tensor, has attributes (unit)"),
    "buffer of a module": (torch.nn.Buffer(torch.ones(6)), "of type Tensor, has attributes (_is_b"),
    "masked records": (mrecords.fromarrays([[1] * 6], names="a"), "of type MaskedRecords, is not "),
    "bsr": (sparse.bsr_matrix(NUMBERS), "of type bsr_matrix, is sparse in the format bs"),
    "dia": (sparse.dia_array(NUMBERS), "of type dia_array, is sparse in the format dia"),
    "sparse vector": (sparse.coo_array(numpy.arange(6)), "of type coo_array, is sparse and not of"),
    "sparse tensor": (torch.eye(6).to_sparse(), "of type Tensor, is sparse, and torch"),
    "csr tensor": (quiet(torch.eye(6).to_sparse_csr), "of type Tensor, is sparse, and torch"),
    "nested tensor": (quiet(lambda: torch.nested.nested_tensor([torch.ones(2)] * 6)),
        "of type Tensor, is a nest"),
    "jagged tensor": (quiet(
        lambda: torch.nested.nested_tensor([torch.ones(2)] * 6, layout=torch.jagged)),
        "of type NestedTensor, is a nested tensor, whose rows differ"),
    "quantized tensor": (quiet(
        lambda: torch.quantize_per_tensor(torch.ones(6), 0.1, 0, torch.qint8)),
        "of type Tensor, is quantized"),
    "parameter subclass": (OwnParameter(torch.ones(6)), "of type OwnParameter, is of a subclass"),
    "uninitialized": (torch.nn.UninitializedParameter(), "of type UninitializedParameter, is of"),
    "lost frame": (LostFrame({"a": range(6)}), "has the type LostFrame and would get the type Dat"),
    "named tuple": (Point(1, 2), "of type Point, has slices that are no Point: give"),
    "list subclass": (OwnList([1] * 6), "of type OwnList, has slices that are no OwnList"),
    "size": (torch.Size([1] * 6), "of type Size, has slices that are no Size"),
    "UserList": (UserList([1] * 6), "is of type collections.UserList, for whose rows there is no"),
    "deque": (deque([1] * 6), "is of type collections.deque, for whose rows there is no rule"),
    "memoryview": (memoryview(b"abcdef"), "is of type builtins.memoryview, for whose rows"),
    "text": ("abcdef", "is of type str and has no rows"),
    "dict": (OrderedDict(a=1), "is of type OrderedDict and has no rows"),
    "view of a dict": ({"a": 1}.values(), "is of type builtins.dict_values, for whose rows"),
    "iterator": (iter([1]), "is of type list_iterator and has no rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_would_lose_something_is_refused(name: str) -> None:
    value, text = REFUSED[name]
    told = refusal(lambda: cut("batch", value, 2))
    assert told.startswith(
        ("scatter: batch, " if text.startswith("of") else "scatter: batch ") + text
    )
    assert told.endswith(", or push all of it and let each rank take its own")
    if name != "lost frame":
        told = refusal(lambda: join("batch", [value, value], place))
        assert told.startswith("pull: batch")
        assert told.endswith(", or pull it without join=True")


def test_an_error_names_the_remedy() -> None:
    assert refusal(lambda: cut("x", with_unit(WithUnit), 2)) == (
        "scatter: x, of type WithUnit, has attributes (unit) for which numpy.concatenate has no "
        "rule: give WithUnit an __array_function__ with one, or give a value without them, or push "
        "all of it and let each rank take its own"
    )
    assert refusal(lambda: join("x", [sparse.bsr_matrix(NUMBERS)] * 2, place)) == (
        "pull: x, of type bsr_matrix, is sparse in the format bsr, which scipy does not cut: give "
        "its tocsr(), or pull it without join=True"
    )


def test_a_property_that_a_library_loses_is_told() -> None:
    with_source = OwnFrame({"a": range(6)})
    with_source.source = "disk"  # pyright: ignore[reportAttributeAccessIssue]
    parts = cut("x", with_source, 2)
    assert [part.source for part in parts] == ["disk", "disk"]
    told = refusal(lambda: join("x", parts, place))
    assert told.startswith("pull: x has the source disk and would get the source None: ")


def test_ranges_with_a_gap_are_not_joined_to_one() -> None:
    assert refusal(lambda: join("x", [range(3), range(4, 6)], place)) == (
        "pull: x cannot be joined: its ranges do not follow each other: convert it first, or pull "
        "it without join=True"
    )
