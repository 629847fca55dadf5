"""A batch in pieces: each byte once, by any number of threads, over links that fail half way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.rdma.handle import VERSION, Handle, Owner, decode, encode
from monarch._src.rdma.memory import Memory
from monarch._src.rdma.transfer import MOST_IN_A_BATCH, Lane, Op, Piece, Ranges, batches_of
from monarch._src.rdma.transports.base import TransportFailed

OWNER = Owner(bytes(16), "host/boot", 1, 3, "node", "address")
MIB = 1 << 20


def handle(size: int, slot: int = 0) -> Handle:
    return Handle(VERSION, OWNER, slot, bytes(16), size, False, False, "actor", "id")


def op(size: int, slot: int = 0) -> Op:
    memory = Memory(slot << 40, size, False, None)
    return Op("read", handle(size, slot), memory, size)


class Recording:
    """A link that notes what it is asked to move, and fails from some call on."""

    name: ClassVar[str] = "recording"
    at_once: ClassVar[bool] = True
    takes_gpus: ClassVar[bool] = False

    def __init__(self, piece: int, fails_after: int = 1 << 30) -> None:
        self.piece = piece
        self.streams = 3
        self.moved: list[Piece] = []
        self._left = fails_after
        self._lock = threading.Lock()

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                raise TransportFailed("it was told to")
            self.moved += pieces

    write_from = read_into

    def close(self, *, now: bool = False) -> None: ...


class Forgetful(Recording):
    """Notes nothing."""

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None: ...


def threads() -> tuple[Callable[[Callable[[], None]], bool], list[threading.Thread]]:
    started: list[threading.Thread] = []

    def enlist(work: Callable[[], None]) -> bool:
        started.append(threading.Thread(target=work))
        started[-1].start()
        return True

    return enlist, started


def ranges(pieces: Sequence[Piece]) -> list[tuple[int, int, int]]:
    return sorted((p.handle.slot, p.offset, p.size) for p in pieces)


@pytest.mark.parametrize("size", [1, MIB, 16 * MIB, 16 * MIB + 1, 100 * MIB - 7])
def test_every_byte_is_moved_once_to_where_it_belongs(size: int) -> None:
    link = Recording(8 * MIB)
    enlist, started = threads()
    lane = Lane("read", [op(size, 5)])
    lane.run(link, 0, enlist)
    at = 0
    for _, offset, length in ranges(link.moved):
        assert offset == at
        at += length
    assert at == size == lane.done
    assert all(p.address == (5 << 40) + p.offset for p in link.moved)
    for thread in started:
        thread.join()


def test_small_pieces_go_together() -> None:
    pieces = [Piece(handle(100), 0, 0, 100) for _ in range(MOST_IN_A_BATCH + 10)]
    assert [len(batch) for batch in batches_of(pieces, MIB)] == [MOST_IN_A_BATCH, 10]
    assert [len(batch) for batch in batches_of(pieces[:4], 250)] == [2, 2]


@given(st.lists(st.integers(1, 20 * MIB), min_size=1, max_size=20), st.integers(0, 6))
def test_a_link_that_fails_loses_only_what_was_on_its_way(sizes: list[int], calls: int) -> None:
    lane = Lane("read", [op(size, slot) for slot, size in enumerate(sizes)])
    enlist, started = threads()
    first, second = Recording(8 * MIB, calls), Recording(8 * MIB)
    try:
        lane.run(first, 0, enlist)
    except TransportFailed:
        assert not lane.finished
        lane.run(second, 0, enlist)
    assert lane.finished
    assert lane.done == sum(sizes)
    moved = ranges([*first.moved, *second.moved])
    for slot, size in enumerate(sizes):
        at = 0
        for _, offset, length in (r for r in moved if r[0] == slot):
            assert offset == at
            at += length
        assert at == size
    for thread in started:
        thread.join()


def test_what_is_told_of_a_run_is_told_before_it_returns() -> None:
    """Else the last bytes of one that was given up would be counted to the next."""
    told: list[tuple[int, int]] = []
    lane = Lane("read", [op(100 * MIB)], lambda size: told.append((size, lane._running)))
    enlist, started = threads()
    lane.run(Recording(8 * MIB), 0, enlist)
    assert sum(size for size, _ in told) == 100 * MIB
    assert all(at_work for _, at_work in told), "`run` waits for who is at work"
    for thread in started:
        thread.join()


def test_a_helper_that_comes_too_late_holds_no_memory_that_was_moved() -> None:
    late: list[Callable[[], None]] = []
    keep = bytearray(1)  # cannot be referred to weakly: its references are counted
    before = sys.getrefcount(keep)
    moved = Op("read", handle(100 * MIB), Memory(0, 100 * MIB, False, keep), 100 * MIB)
    lane = Lane("read", [moved])
    del moved
    lane.run(Forgetful(8 * MIB), 0, lambda work: late.append(work) is None)
    assert lane.finished
    assert sys.getrefcount(keep) == before
    assert late
    for work in late:
        work()


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=25)


@given(INTERVALS, st.tuples(st.integers(0, 60), st.integers(1, 12)))
def test_ranges_overlap_as_their_bytes_do(
    added: list[tuple[int, int]], probe: tuple[int, int]
) -> None:
    found = Ranges()
    taken: set[int] = set()
    for start, size in added:
        assert found.overlaps(start, start + size) == bool(taken & set(range(start, start + size)))
        found.add(start, start + size)
        taken |= set(range(start, start + size))
    start, size = probe
    assert found.overlaps(start, start + size) == bool(taken & set(range(start, start + size)))


def test_a_handle_comes_back_as_it_was_and_does_not_show_its_key() -> None:
    there = handle(10, 3)
    assert decode(encode(there)) == there
    assert str(there.key) not in there.text


@pytest.mark.parametrize("data", [b"", b"x", b"\x90", encode(handle(10))[:-3], b"\xff" * 40])
def test_bytes_that_are_no_handle_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a handle of an RDMABuffer"):
        decode(data)


@given(st.binary(max_size=120))
def test_any_bytes_are_a_handle_or_a_value_error(data: bytes) -> None:
    try:
        decode(data)
    except ValueError:
        return
