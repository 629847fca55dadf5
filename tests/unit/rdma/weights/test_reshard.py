"""Parts of tensors: which bytes of which shards make up what is wanted, against numpy."""

from __future__ import annotations

from math import prod

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.rdma.weights.layout import (
    ALIGNED,
    Box,
    Entry,
    Facts,
    Layout,
    TensorSlice,
    covered,
    laid_out,
    runs_of,
    strides_of,
)

SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@st.composite
def parts(draw: st.DrawFn, shape: tuple[int, ...]) -> TensorSlice:
    starts = [draw(st.integers(0, n)) for n in shape]
    sizes = [draw(st.integers(0, n - at)) for n, at in zip(shape, starts, strict=True)]
    return TensorSlice(tuple(starts), tuple(sizes), shape)


@st.composite
def wholes(draw: st.DrawFn) -> tuple[TensorSlice, list[TensorSlice], int]:
    shape = draw(SHAPES)
    held = draw(st.lists(parts(shape), max_size=5))
    return draw(parts(shape)), held, draw(st.integers(0, 4))


@given(wholes())
def test_what_is_wanted_comes_from_its_parts_each_element_once_and_the_rest_is_told(
    drawn: tuple[TensorSlice, list[TensorSlice], int],
) -> None:
    wanted, held, first = drawn
    whole = numpy.arange(1, 1 + prod(wanted.global_shape)).reshape(wanted.global_shape)
    shards = [whole[part.index].ravel() for part in held]
    target = numpy.zeros(prod(wanted.local_shape), whole.dtype)
    boxes, missing = covered(wanted, held, first)
    for number, box in boxes:
        runs = runs_of(box, held[number], wanted)
        pairs = list(runs)
        assert len(pairs) == runs.count
        for source, destination in pairs:
            piece = slice(destination, destination + runs.length)
            assert not target[piece].any(), "an element came twice"
            assert runs.start <= source <= runs.stop - runs.length
            target[piece] = shards[number][source : source + runs.length]
        assert runs.length * runs.count == prod(box.shape)
    shaped = target.reshape(wanted.local_shape)
    there = numpy.zeros(wanted.global_shape, bool)
    for part in held:
        there[part.index] = True
    assert (shaped == numpy.where(there, whole, 0)[wanted.index]).all()
    assert sum(prod(box.shape) for box in missing) == (~there[wanted.index]).sum()


@given(wholes())
def test_a_box_is_also_a_strided_view_of_the_bytes_from_its_start_to_its_stop(
    drawn: tuple[TensorSlice, list[TensorSlice], int],
) -> None:
    wanted, held, first = drawn
    whole = numpy.arange(prod(wanted.global_shape)).reshape(wanted.global_shape)
    target = numpy.full(wanted.local_shape, -1)
    boxes, missing = covered(wanted, held, first)
    for number, box in boxes:
        runs = runs_of(box, held[number], wanted)
        span = whole[held[number].index].ravel()[runs.start : runs.stop].copy()
        steps = tuple(stride * span.itemsize for stride in runs.strides)
        target[runs.places] = numpy.lib.stride_tricks.as_strided(span, box.shape, steps)
    if not missing:
        assert (target == whole[wanted.index]).all()


def test_whole_rows_are_one_run_and_columns_one_run_a_row() -> None:
    whole = TensorSlice.whole((100, 8))
    rows = TensorSlice.shard((100, 8), 0, 1, 4)
    columns = TensorSlice.shard((100, 8), 1, 1, 4)
    assert (runs := runs_of(Box.of(rows), whole, rows)).count == 1
    assert list(runs) == [(200, 0)]
    assert (runs := runs_of(Box.of(columns), whole, columns)).count == 100
    assert list(runs)[:2] == [(2, 0), (10, 2)]


def test_replicas_are_spread_by_who_is_asked_first() -> None:
    whole = TensorSlice.whole((4,))
    assert [covered(whole, [whole] * 3, n)[0][0][0] for n in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize(("size", "count"), [(8, 4), (7, 3), (2, 4), (1, 1), (10, 4)])
def test_shards_are_cut_as_torch_cuts_them(size: int, count: int) -> None:
    torch = pytest.importorskip("torch")
    chunks = [len(chunk) for chunk in torch.arange(size).chunk(count)]
    parts = [TensorSlice.shard((3, size), -1, n, count) for n in range(count)]
    assert [p.local_shape for p in parts if p.local_shape[1]] == [(3, n) for n in chunks]
    assert covered(TensorSlice.whole((3, size)), parts)[1] == []


@pytest.mark.parametrize(
    ("offsets", "local", "whole", "text"),
    [
        ((0,), (1, 1), (2, 2), "the same number of dims"),
        ((1,), (2,), (2,), "it exceeds a tensor of"),
        ((-1,), (1,), (2,), "it exceeds a tensor of"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused(
    offsets: tuple[int, ...], local: tuple[int, ...], whole: tuple[int, ...], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        TensorSlice(offsets, local, whole)


def test_shards_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="no dim 2"):
        TensorSlice.shard((4, 4), 2, 0, 2)
    with pytest.raises(ValueError, match="no part 2 of 2"):
        TensorSlice.shard((4, 4), 0, 2, 2)


def test_tensors_lie_one_after_the_other_aligned() -> None:
    shapes = {"a": (3,), "empty": (0, 4), "scalar": (), "b": (5, 5)}
    facts = {name: Facts("numpy", "float32", 4, shape) for name, shape in shapes.items()}
    layout = laid_out(facts, {"b": TensorSlice.shard((10, 5), 0, 1, 2)})
    layout.validate()
    assert [e.offset for e in layout.entries] == [0, ALIGNED, ALIGNED, 2 * ALIGNED]
    assert [e.size for e in layout.entries] == [12, 0, 4, 100]
    assert layout.size == 116
    assert layout.entries[3].part.global_shape == (10, 5)


def test_slices_that_fit_no_tensor_are_refused() -> None:
    facts = {"a": Facts("torch", "float32", 4, (3,))}
    with pytest.raises(ValueError, match="that the state dict lacks: b"):
        laid_out(facts, {"b": TensorSlice.whole((3,))})
    with pytest.raises(ValueError, match=r"'a' has shape \(3,\), its slice is \[0:2\] of \(4,\)"):
        laid_out(facts, {"a": TensorSlice.shard((4,), 0, 0, 2)})


def test_an_entry_outside_its_slot_is_refused() -> None:
    part = TensorSlice.whole((4,))
    for offset in (-1, 50):
        layout = Layout((Entry("a", "torch", "float32", 4, part, offset),), 64)
        with pytest.raises(ValueError, match="'a' exceeds its slot"):
            layout.validate()


def test_strides_are_those_of_numpy() -> None:
    for shape in [(), (5,), (2, 3), (4, 1, 6)]:
        array = numpy.zeros(shape, numpy.uint8)
        assert strides_of(shape) == array.strides
