"""Buffers: what was written is read, in whatever pieces, and only what may change is copied."""

from __future__ import annotations

import array
import copy
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.pickling.pickler import dumps, loads
from monarch._src.wire.frames import decode, encode
from monarch._src.wire.messages import Call
from monarch._src.wire.segment_refs import SEGMENT_FROM
from monarch.buffers import Buffer, FrozenBuffer
from monarch.config import configured
from tests.support.payloads import buffers_of

CALL = Call(1, 2, "step", 0, [], [])
LARGE = bytes(range(256)) * (SEGMENT_FROM // 256)


def frozen(*written: Any) -> FrozenBuffer:
    buffer = Buffer()
    for data in written:
        buffer.write(data)
    return buffer.freeze()


def travelled(value: Any) -> Any:
    """Through the bytes of frames, into other memory."""
    frames = [memoryview(bytearray(frame)) for frame in encode(CALL, dumps(value))]
    return loads(decode(frames)[1])


def to_a_neighbour(value: Any) -> Any:
    """To an actor of the same process."""
    return loads(dumps(value).own())


# --- writing and reading --------------------------------------------------------------------------

kinds: list[Callable[[bytes], Any]] = [
    bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data)),
    lambda data: np.frombuffer(data, np.uint8), lambda data: memoryview(data + b"more")[:-4],
]  # fmt: skip
texts = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"line\n", b""]), max_size=8).map(b"".join)
writes = st.lists(st.tuples(texts, st.sampled_from(kinds)), max_size=8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 12)),
        st.tuples(st.just("readline"), st.integers(-1, 12)),
        st.tuples(st.just("readinto"), st.integers(0, 12)),
        st.tuples(st.just("getbuffer"), st.just(0)),
        st.tuples(st.sampled_from([travelled, to_a_neighbour]), st.just(0)),
    ),
    max_size=8,
)


@given(writes=writes, steps=steps, threshold=st.sampled_from([0, 1, 4, 256]))
def test_a_frozen_buffer_reads_as_a_file_of_all_that_was_written(
    writes: list[tuple[bytes, Callable[[bytes], Any]]],
    steps: list[tuple[Any, int]],
    threshold: int,
) -> None:
    with configured(small_write_threshold=threshold):
        buffer = Buffer()
        for data, kind in writes:
            assert buffer.write(kind(data)) == len(data)
    content = b"".join(data for data, _ in writes)
    assert len(buffer) == len(content)
    found: Any = buffer.freeze()
    file = io.BytesIO(content)
    for step, size in steps:
        rest = content[file.tell() :]
        assert len(found) == len(rest)
        assert bytes(found) == rest == b"".join(found)
        if step == "readinto":
            mine, other = bytearray(size), bytearray(size)
            assert found.readinto(mine) == file.readinto(other)
            assert mine == other
        elif step == "getbuffer":
            assert found.getbuffer() == rest
        elif callable(step):
            found = step(found)
        else:
            assert getattr(found, step)(size) == getattr(file, step)(size)
    assert found.read() == file.read()
    assert (len(found), found.read(), found.readline(), bytes(found)) == (0, b"", b"", b"")


def test_reading_without_a_size_or_with_none_reads_all() -> None:
    assert frozen(b"abc").read() == frozen(b"abc").read(None) == b"abc"
    assert frozen(b"a\nb").readline() == frozen(b"a\nb").readline(None) == b"a\n"


def test_a_line_is_found_wherever_the_pieces_end() -> None:
    with configured(small_write_threshold=0):
        found = frozen(b"x" * 5000, b"y", b"z\n" + b"w" * 9000, b"\n", b"end")
    lines = iter(found.readline, b"")
    assert [len(line) for line in lines] == [5003, 9001, 3]


def test_freezing_empties_a_buffer_which_can_be_written_again() -> None:
    buffer = Buffer()
    buffer.write(b"first" * 100)
    buffer.write(b"small")
    first = buffer.freeze()
    assert len(buffer) == len(buffer.freeze()) == 0
    buffer.write(b"second")
    assert (first.read(), buffer.freeze().read()) == (b"first" * 100 + b"small", b"second")


def test_a_pickle_can_be_written_to_a_buffer_and_loaded_from_a_frozen_one() -> None:
    value = {"data": LARGE, "text": "small", "list": [1, 2, 3]}
    buffer = Buffer()
    pickle.dump(value, buffer, protocol=5)
    assert pickle.load(buffer.freeze()) == value


def test_small_writes_are_one_piece_and_large_ones_each_their_own() -> None:
    found = frozen(b"a" * 255, b"b" * 10, b"c" * 256, b"d" * 300, b"e", b"f" * 255)
    assert [len(piece) for piece in found] == [265, 256, 300, 256]


def test_the_threshold_is_a_setting() -> None:
    with configured(small_write_threshold=3):
        buffer = Buffer()
    for data in (b"ab", b"c", b"def", b"gh"):
        buffer.write(data)
    assert [bytes(piece) for piece in buffer.freeze()] == [b"abc", b"def", b"gh"]


# --- copies ---------------------------------------------------------------------------------------


def test_bytes_over_the_threshold_are_kept_and_come_back_as_they_are() -> None:
    data = b"x" * 256
    assert frozen(data).read() is data
    assert frozen(memoryview(data)).read() is data
    assert frozen(b"small", data, b"small").getbuffer() == b"small" + data + b"small"
    found = frozen(data)
    assert found.getbuffer().obj is data
    assert found.read(255) == data[1:]
    small = b"x" * 255
    assert frozen(small).read() is not small


def test_a_view_of_a_part_of_bytes_is_kept_too() -> None:
    data = b"x" * 1000
    (piece,) = frozen(memoryview(data)[100:900])
    assert piece.obj is data
    assert len(piece) == 800


@pytest.mark.parametrize("size", [100, 256, SEGMENT_FROM, 10 * SEGMENT_FROM])
@pytest.mark.parametrize(
    "kind",
    [
        bytearray,
        lambda data: memoryview(bytearray(data)),
        lambda data: array.array("B", data),
        lambda data: np.frombuffer(bytearray(data), np.uint8),
    ],
    ids=["bytearray", "memoryview", "array", "numpy"],
)
def test_what_is_written_is_what_it_was_then_whatever_is_done_to_it_after(
    kind: Callable[[bytes], Any], size: int
) -> None:
    memory = kind(b"x" * size)
    buffer = Buffer()
    buffer.write(memory)
    memory[0] = ord("y")
    waiting = dumps(buffer)
    found = buffer.freeze()
    memory[1] = ord("z")
    assert found.getbuffer() == b"x" * size
    assert loads(waiting).freeze().read() == b"x" * size


def test_so_is_what_is_only_shown_read_only_by_one_who_can_change_it() -> None:
    memory = bytearray(1000)
    found = frozen(memoryview(memory).toreadonly())
    memory[0] = 1
    assert found.read() == bytes(1000)
    numbers = np.zeros(1000, np.uint8)
    shown = numbers.view()
    shown.setflags(write=False)
    found = frozen(shown)
    numbers[0] = 1
    assert found.read() == bytes(1000)


@pytest.mark.parametrize(
    "memory",
    [
        np.arange(600.0).reshape(20, 30),
        np.asfortranarray(np.arange(600.0).reshape(20, 30)),
        np.arange(600.0)[::-2],
        np.array(5.0),
        memoryview(b"x" * 600)[::-1],
        memoryview(bytes(range(200)))[::-3],
        array.array("d", range(100)),
        np.ones(100, dtype=[("a", "i4"), ("b", "f8")]),
        np.arange(100, dtype=">f8"),
        np.arange(100, dtype="f2"),
        memoryview(bytes(range(200))).cast("I", [5, 10]),
    ],
    ids=["rows", "columns", "backwards", "no dims", "bytes backwards", "thirds", "array", "records",
         "other endian", "halves", "cast bytes"],
)  # fmt: skip
@pytest.mark.parametrize("threshold", [0, 1 << 30])
def test_memory_of_any_layout_is_written_in_its_order(memory: Any, threshold: int) -> None:
    with configured(small_write_threshold=threshold):
        assert Buffer().write(memory) == memoryview(memory).nbytes
        found = frozen(memory)
    assert found.getbuffer().format == "B"
    assert found.read() == memoryview(memory).tobytes()


@pytest.mark.parametrize("data", ["text", 5, None, [1, 2], object()])
def test_what_is_no_buffer_is_refused(data: Any) -> None:
    buffer = Buffer()
    said = f"Buffer.write takes bytes or another buffer, not {type(data).__name__}"
    with pytest.raises(TypeError, match=said):
        buffer.write(data)
    assert len(buffer) == 0


def test_text_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match="not str; encode the text first"):
        Buffer().write("text")


def test_what_is_frozen_cannot_be_changed() -> None:
    found = frozen(b"s" * 10, b"l" * 1000, bytearray(1000))
    for piece in (*found, found.getbuffer()):
        with pytest.raises(TypeError, match="read-only"):
            piece[0] = 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes are no buffers before 3.12")
def test_a_frozen_buffer_is_a_buffer() -> None:
    found = frozen(b"s" * 10, b"l" * 1000)
    assert memoryview(found) == b"s" * 10 + b"l" * 1000
    assert np.frombuffer(found, np.uint8).sum() == 10 * ord("s") + 1000 * ord("l")  # pyright: ignore[reportCallIssue, reportArgumentType]


# --- travelling -----------------------------------------------------------------------------------


def test_large_pieces_are_sent_as_they_stand_and_arrive_apart() -> None:
    small, other = b"s" * 1000, b"o" * (SEGMENT_FROM + 1)
    payload = dumps((frozen(LARGE, small, other),))
    first, second = payload.buffers
    assert memoryview(first).obj.obj is LARGE  # type: ignore[attr-defined]
    assert memoryview(second).obj.obj is other  # type: ignore[attr-defined]
    frames = [memoryview(bytearray(frame)) for frame in encode(CALL, payload)]
    (arrived,) = loads(decode(frames)[1])
    pieces = list(arrived)
    assert [bytes(piece) for piece in pieces] == [LARGE, small, other]
    assert np.shares_memory(np.frombuffer(pieces[0], np.uint8), np.frombuffer(frames[1], np.uint8))


def test_what_arrived_is_sent_on_as_it_stands() -> None:
    arrived = travelled(frozen(LARGE, b"end" * 100))
    (buffer,) = buffers_of(dumps(arrived))
    (piece, _) = arrived
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), np.frombuffer(piece, np.uint8))
    assert travelled(arrived).read() == LARGE + b"end" * 100


def test_what_goes_to_the_same_process_is_shared_since_nobody_changes_it() -> None:
    assert to_a_neighbour(frozen(LARGE)).read() is LARGE
    collected = frozen(bytearray(LARGE))
    arrived = to_a_neighbour(collected)
    mine, others = collected.getbuffer(), arrived.getbuffer()
    assert np.shares_memory(np.frombuffer(mine, np.uint8), np.frombuffer(others, np.uint8))
    with pytest.raises(TypeError, match="read-only"):
        others[0] = 1


def test_only_what_is_left_travels_and_sending_reads_nothing() -> None:
    found = frozen(LARGE, b"and more")
    found.read(SEGMENT_FROM - 4)
    assert travelled(found).read() == LARGE[-4:] + b"and more"
    assert len(found) == 12


def test_a_buffer_arrives_as_one_that_can_be_written_to_and_stays_one_here() -> None:
    buffer = Buffer()
    buffer.write(LARGE)
    buffer.write(b"small")
    arrived = travelled(buffer)
    assert type(arrived) is Buffer
    assert len(arrived) == len(buffer) == SEGMENT_FROM + 5
    arrived.write(b" there")
    buffer.write(b" here")
    assert arrived.freeze().read() == LARGE + b"small there"
    assert buffer.freeze().read() == LARGE + b"small here"


def test_one_that_is_sent_twice_in_a_message_arrives_as_one() -> None:
    found = frozen(LARGE)
    payload = dumps(([found], {"again": found}))
    assert len(payload.buffers) == 1
    first, table = loads(payload)
    assert first[0] is table["again"]


def test_a_buffer_of_ten_thousand_pieces_arrives() -> None:
    found = frozen(*[b"%06d" % n * 50 for n in range(10_000)])
    assert travelled(found).read() == b"".join(b"%06d" % n * 50 for n in range(10_000))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_buffers_can_be_pickled_and_copied_as_anything_can(protocol: int) -> None:
    found = frozen(LARGE, b"small")
    assert pickle.loads(pickle.dumps(found, protocol)).read() == LARGE + b"small"
    assert copy.copy(found).read() == copy.deepcopy(found).read() == LARGE + b"small"
    assert len(found) == SEGMENT_FROM + 5


def test_they_say_how_much_they_hold() -> None:
    buffer = Buffer()
    buffer.write(b"x" * 300)
    assert repr(buffer) == "<Buffer of 300 bytes>"
    assert repr(buffer.freeze()) == "<FrozenBuffer of 300 bytes in 1 piece>"
    assert repr(frozen(b"x" * 300, b"y")) == "<FrozenBuffer of 301 bytes in 2 pieces>"
