"""Each reader of a ring gets all that was written, in order; what it has not read is not lost."""

from __future__ import annotations

import os
import signal
from collections import deque
from mmap import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.wire.ring import LONGEST, ROOM, RingReader, RingWriter, size_for
from monarch._src.wire.stream import StreamError

READERS = st.integers(1, 5)
# Of messages in a row: enough of the long ones to go round the ring some times.
SIZES = st.one_of(st.integers(0, 40), st.integers(LONGEST - 9, LONGEST))
# How often to write, a message of which size, and who reads then (of at most five, by bits).
STEPS = st.lists(st.tuples(st.integers(1, 40), SIZES, st.integers(0, 31)), max_size=40)


def ring_of(readers: int) -> tuple[RingWriter, list[RingReader]]:
    memory = mmap(-1, size_for(readers))
    return RingWriter(memory, readers), [
        RingReader(memory, readers, reader) for reader in range(readers)
    ]


@given(READERS, STEPS)
def test_each_reader_gets_what_was_written_and_what_it_has_to_follow(
    count: int, steps: list[tuple[int, int, int]]
) -> None:
    writer, readers = ring_of(count)
    unread: list[deque[tuple[int, bytes]]] = [deque() for _ in readers]
    number = 0
    for times, size, who in steps:
        for _ in range(times):
            number += 1
            message = number.to_bytes(4, "big") * (size // 4) + bytes(size % 4)
            follows = [number * (1 + reader) for reader in range(count)]
            if writer.write(follows, message):
                for queue, own in zip(unread, follows, strict=True):
                    queue.append((own, message))
            else:
                assert max(sum(len(m) for _, m in queue) for queue in unread) > ROOM // 2
        for reader in range(count):
            if who >> reader & 1:
                assert readers[reader].read() == list(unread[reader])
                unread[reader].clear()
    for reader, queue in zip(readers, unread, strict=True):
        assert reader.read() == list(queue)
        assert reader.read() == []


def test_one_who_does_not_read_leaves_no_room_and_loses_nothing() -> None:
    writer, (reads, waits) = ring_of(2)
    written = 0
    while writer.write([0, written], b"%d" % written):
        written += 1
        assert len(reads.read()) == 1
    assert not writer.write([0, 0], b"")
    assert waits.read() == [(number, b"%d" % number) for number in range(written)]
    assert writer.write([0, 0], b"next")
    assert waits.read() == [(0, b"next")]


def test_a_ring_holds_as_much_as_it_has_room_for() -> None:
    writer, (reader,) = ring_of(1)
    head = 16
    body = bytes(LONGEST - head)
    for _ in range(ROOM // LONGEST):
        assert writer.write([7], body)
    assert not writer.write([7], b"")
    assert len(reader.read()) == ROOM // LONGEST
    assert writer.write([7], b"")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="others see writes in another order")
def test_who_reads_while_another_process_writes_sees_whole_messages() -> None:
    count = 100_000
    memory = mmap(-1, size_for(1))
    writer, reader = RingWriter(memory, 1), RingReader(memory, 1, 0)
    child = os.fork()
    if not child:
        for number in range(count):
            while not writer.write([number], b"%d" % number):
                pass
        os._exit(0)
    try:
        came = 0
        while came < count:
            for follows, message in reader.read():
                assert (follows, message) == (came, b"%d" % came)
                came += 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_is_too_long_is_not_written() -> None:
    writer, (reader,) = ring_of(1)
    assert not writer.write([0], bytes(LONGEST + 1))
    assert reader.read() == []
    assert writer.write([0], bytes(LONGEST))


def test_who_reads_says_how_far_by_its_own_number_only() -> None:
    """Somebody else's would make room for what would be written over unread messages."""
    writer, readers = ring_of(3)
    writer.write([1, 2, 3], b"x")
    for place, reader in enumerate(readers):
        assert reader.read() == [(place + 1, b"x")]


@pytest.mark.parametrize("readers", [1, 4, 128])
def test_records_stay_aligned(readers: int) -> None:
    writer, (reader, *_) = ring_of(readers)
    for size in range(20):
        assert writer.write([size] * readers, bytes(size))
    assert reader.read() == [(size, bytes(size)) for size in range(20)]


@pytest.mark.parametrize(
    ("at", "number", "why"),
    [
        (0, ROOM + 8, "holds nothing from 0 up to"),
        (0, 12, "ends at 24, and what was written at 12"),
        (16, LONGEST + 1, "holds no message of 4097 bytes"),
    ],
)
def test_what_is_no_ring_is_refused(at: int, number: int, why: str) -> None:
    memory = mmap(-1, size_for(1))
    RingWriter(memory, 1).write([0], b"message")
    memory[at : at + 4] = number.to_bytes(4, "little")
    with pytest.raises(StreamError, match=why):
        RingReader(memory, 1, 0).read()


def test_a_ring_that_goes_backwards_is_refused() -> None:
    memory = mmap(-1, size_for(1))
    writer, reader = RingWriter(memory, 1), RingReader(memory, 1, 0)
    writer.write([0], b"message")
    reader.read()
    memory[0:8] = bytes(8)
    with pytest.raises(StreamError, match="holds nothing from 24 up to 0"):
        reader.read()
