"""What may be registered, and what is refused in which words."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref
from typing import Any

import numpy
import pytest
import torch

from monarch._src.rdma.memory import fix_in_place, span_of_root, view_of
from monarch._src.rdma.registrable import memory_of


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(b"abcdefgh"),
        lambda: memoryview(bytearray(b"abcdefgh")),
        lambda: numpy.frombuffer(bytearray(b"abcdefgh"), numpy.uint16),
        lambda: numpy.array([1, 2], numpy.float32),
        lambda: torch.tensor([1.0, 2.0]),
        lambda: torch.arange(9, dtype=torch.uint8)[1:],
        lambda: array.array("i", [1, 2]),
        lambda: mmap.mmap(-1, 8),
        lambda: numpy.zeros(1, [("Origin", "f4"), ("Offset", "f4")]),
    ],
)
def test_memory_is_used_where_it_lies(make: Any) -> None:
    value = make()
    memory = memory_of(value)
    assert memory.size == 8
    assert not memory.readonly
    seen = view_of(memory.address, memory.size)
    seen[:] = b"\x01\x02\x03\x04\x05\x06\x07\x08"
    raw = value.numpy().tobytes() if isinstance(value, torch.Tensor) else bytes(memoryview(value))
    assert raw == bytes(seen)


@pytest.mark.parametrize(
    "value", [b"abc", memoryview(b"abc"), numpy.frombuffer(b"abc", numpy.uint8)]
)
def test_what_is_read_only_is_known_as_such(value: Any) -> None:
    assert memory_of(value).readonly


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (3, TypeError, "not int"),
        ("text", TypeError, "not str"),
        ([1, 2], TypeError, "not list"),
        (b"", ValueError, "size 0"),
        (torch.empty(0), ValueError, "size 0"),
        (numpy.zeros((2, 3)), ValueError, "shape (2, 3)"),
        (numpy.zeros(8)[::2], ValueError, "flattened"),
        (torch.zeros(2, 3), ValueError, "flatten()"),
        (torch.ones(3, dtype=torch.complex64).conj(), ValueError, "resolve_conj()"),
        (torch._neg_view(torch.ones(3)), ValueError, "resolve_neg()"),  # pyright: ignore[reportPrivateImportUsage]
        (numpy.zeros(3, "M8[s]"), TypeError, "`.view('u1')`"),
        (numpy.zeros(3, [("a", "i4"), ("b", object)]), TypeError, "Python objects"),
        (torch.zeros(8)[::2], ValueError, "strides (2,)"),
        (torch.zeros(3, device="meta"), TypeError, "a tensor on meta"),
        (torch.zeros(3).to_sparse(), TypeError, "layout torch.sparse_coo"),
        (numpy.array([object()]), TypeError, "Python objects"),
    ],
)
def test_what_has_no_bytes_in_a_row_is_refused_with_what_would_do(
    value: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as raised:
        memory_of(value)
    assert said in str(raised.value)


def test_the_owner_of_memory_is_what_tells_of_its_end() -> None:
    tensor = torch.zeros(8)
    assert memory_of(tensor[2:]).root is tensor.untyped_storage()
    own = numpy.zeros(8)
    assert memory_of(own[2:]).root is own
    assert memory_of(own.data).root is own
    assert memory_of(numpy.frombuffer(bytearray(8), numpy.uint8)).root is None
    assert memory_of(bytearray(8)).root is None


@pytest.mark.parametrize("last", ["tensor", "view", "storage"])
def test_the_end_of_a_storage_is_told_before_its_memory_is_freed(last: str) -> None:
    """What every handle stands on: its slot is retired while the bytes are still the same."""
    order: list[str] = []
    block = (ctypes.c_ubyte * 4096)()
    weakref.finalize(block, order.append, "freed").atexit = False
    tensor = torch.frombuffer(block, dtype=torch.uint8)
    del block
    told = weakref.ref(memory_of(tensor).root, lambda _: order.append("told"))
    kept: Any = tensor
    if last == "view":
        kept = tensor.view(torch.int32)[3:]
    elif last == "storage":
        kept = tensor.untyped_storage()
    del tensor
    gc.collect()
    assert order == []
    del kept
    gc.collect()
    assert told() is None
    assert order == ["told", "freed"]


def test_a_registered_storage_cannot_be_resized() -> None:
    tensor = torch.zeros(8)
    fix_in_place(memory_of(tensor))
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(100)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)
    array_ = numpy.zeros(8)
    held = weakref.ref(memory_of(array_).root)
    with pytest.raises(ValueError, match="cannot resize"):
        array_.resize(100)
    assert held() is array_


def test_what_a_root_owns_is_all_around_the_bytes_that_were_given() -> None:
    numbers = numpy.zeros(1000, numpy.float64)
    part = memory_of(numbers[10:20])
    assert span_of_root(part.root, part.address, part.size) == (numbers.ctypes.data, 8000)
    tensor = torch.zeros(1000)
    part = memory_of(tensor[10:20])
    assert span_of_root(part.root, part.address, part.size) == (tensor.data_ptr(), 4000)
    raw = (ctypes.c_ubyte * 100)()
    start = ctypes.addressof(raw)
    assert span_of_root(raw, start + 7, 3) == (start, 100)
    assert span_of_root(raw, start + 99, 3) == (start + 99, 3)  # not all of it is there
    assert span_of_root(object(), 4096, 3) == (4096, 3)
