"""Three gibibytes are an argument like any other, and memory holds no more than it must."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from monarch.actor import Actor, ProcMesh, endpoint
from monarch.buffers import Buffer, FrozenBuffer

Spawn = Callable[..., ProcMesh]
GIBI = 1 << 30
SIZE = 3 * GIBI
NEEDED = 14 * GIBI
SPARE = 64 << 20  # what else a process may come to need meanwhile


def memory(field: str, file: str = "/proc/self/status") -> int:
    """A line of the kernel's about memory, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(file).read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def forget_the_peak() -> int:
    """Let VmHWM begin anew; what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def is_whole(value: Any, size: int) -> bool:
    """Whether this is how `data` begins, of that size; looks at one number in each 64 KiB."""
    view = value.getbuffer() if isinstance(value, FrozenBuffer) else value
    numbers = numpy.frombuffer(view, numpy.int64)
    seen = numbers[::8192]
    return len(numbers) == size // 8 and bool((seen == numpy.arange(0, len(numbers), 8192)).all())


class Weighs(Actor):
    """Says what it was given, and what that took."""

    def __init__(self, given: Any = None) -> None:
        self.kept = None

    @endpoint
    def begin(self) -> int:
        return forget_the_peak()

    @endpoint
    def look(self, value: Any, size: int) -> tuple[str, bool]:
        return type(value).__name__, is_whole(value, size)

    @endpoint
    def keep(self, value: Any) -> None:
        self.kept = value

    @endpoint
    def give(self) -> Any:
        return self.kept

    @endpoint
    def peak(self) -> int:
        return memory("VmHWM")


def there_is_room() -> bool:
    return Path("/proc/meminfo").exists() and memory("MemAvailable", "/proc/meminfo") >= NEEDED


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data() -> bytes:
    """Each 64 KiB begin with their place in it, by which `is_whole` knows them."""
    if not there_is_room():  # now: others may have begun since pytest was started
        pytest.skip("it takes 14 GiB of memory, and Linux to look")
    rest = bytes((1 << 16) - 8)
    places = (at.to_bytes(8, sys.byteorder) for at in range(0, SIZE // 8, 8192))
    return b"".join(part for place in places for part in (place, rest))


def as_buffer(data: bytes) -> FrozenBuffer:
    buffer = Buffer()
    buffer.write(data)
    return buffer.freeze()


def as_array(data: bytes) -> Any:
    return numpy.frombuffer(data, numpy.uint8).copy()


# What is sent, how large, and how often it is in memory at most: here beside the original, there.
WAYS = [
    (bytes, "bytes", SIZE, 0, 2),
    (as_buffer, "FrozenBuffer", SIZE, 0, 1),
    (as_array, "ndarray", GIBI, 1, 1),
]


@pytest.mark.parametrize(
    ("make", "kind", "size", "copies", "there"), WAYS, ids=["bytes", "frozen buffer", "array"]
)
def test_gibibytes_are_an_argument_like_any_other(
    spawn_procs: Spawn, data: bytes, make: Any, kind: str, size: int, copies: int, there: int
) -> None:
    value = make(data if size == SIZE else data[:size])
    weighs = spawn_procs().spawn("weighs", Weighs)
    empty = weighs.begin.call_one().get()
    resident = forget_the_peak()
    assert weighs.look.call_one(value, size).get(timeout=300) == (kind, True)
    assert memory("VmHWM") - resident < copies * size + SPARE
    assert weighs.peak.call_one().get() - empty < there * size + SPARE


def test_three_gibibytes_come_back(spawn_procs: Spawn, data: bytes) -> None:
    weighs = spawn_procs().spawn("weighs", Weighs)
    weighs.keep.call_one(as_buffer(data)).get(timeout=300)
    empty = weighs.begin.call_one().get()
    resident = forget_the_peak()
    arrived = weighs.give.call_one().get(timeout=300)
    assert is_whole(arrived, SIZE)
    assert memory("VmHWM") - resident < SIZE + SPARE
    # What it keeps is mapped, and counted as its own, once it is looked at.
    assert weighs.peak.call_one().get() - empty < SIZE + SPARE


def test_a_constructor_that_keeps_nothing_leaves_nothing(spawn_procs: Spawn, data: bytes) -> None:
    weighs = spawn_procs().spawn("weighs", Weighs, as_buffer(data[:GIBI]))
    assert weighs.begin.call_one().get(timeout=300) < GIBI
