"""How memory of a GPU passes through pinned chunks of the host, and what that holds."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.rdma.cuda.driver import GpuError
from monarch._src.rdma.cuda.gpu import HALF_BYTES, MOST_IDLE, gpu, rounds
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports.base import HandleExpired, Piece, Unavailable
from monarch._src.rdma.transports.gpu_staging import StagedLink
from tests.support.fake_cuda import LAUNCH_FAILED, OUT_OF_MEMORY, FakeDriver
from tests.support.fake_gpu_arrays import DeviceArray
from tests.unit.rdma.gpus import FAR, fake, handle_of

__all__ = ["fake"]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 25))
def test_rounds_cover_each_piece_once_in_order_and_fit(sizes: list[int], room: int) -> None:
    whole = list(rounds(sizes, room))
    for cuts in whole:
        place = 0
        for cut in cuts:
            assert cut.place == place
            assert cut.size > 0
            place += cut.size
        assert place <= room
    assert all(sum(cut.size for cut in cuts) == room for cuts in whole[:-1])
    covered = [(cut.at, cut.offset + n) for cuts in whole for cut in cuts for n in range(cut.size)]
    assert covered == [(at, n) for at, size in enumerate(sizes) for n in range(size)]


class Recorder:
    """A link that moves between memory of this process, and says what a GPU had to do meanwhile."""

    name: ClassVar[str] = "recorder"
    at_once: ClassVar[bool] = False
    takes_gpus: ClassVar[bool] = False
    piece = 1 << 26
    streams = 1

    def __init__(self, fake: FakeDriver, remote: bytearray) -> None:
        self.fake = fake
        self.there = (ctypes.c_char * len(remote)).from_buffer(remote)
        self.pending: list[int] = []
        self.sizes: list[int] = []
        self.error: Exception | None = None

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        self._move(pieces, ctypes.memmove)

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        self._move(pieces, lambda here, there, n: ctypes.memmove(there, here, n))

    def _move(self, pieces: Sequence[Piece], copy: Callable[[int, int, int], Any]) -> None:
        self.pending.append(self.fake.begun())
        self.sizes.append(sum(piece.size for piece in pieces))
        if self.error is not None and len(self.sizes) == 3:
            raise self.error
        for piece in pieces:
            copy(piece.address, ctypes.addressof(self.there) + piece.offset, piece.size)

    def close(self, *, now: bool = False) -> None:
        pass


def pieces_of(array: DeviceArray, *cuts: int) -> list[Piece]:
    """Pieces of it, each to the same place over there."""
    ends = [*cuts, len(array)]
    handle = handle_of(0, bytes(16), len(array))
    found: list[Piece] = []
    start = 0
    for end in ends:
        memory = memory_of(array[start:end])
        found.append(Piece(handle, start, memory.address, memory.size, memory))
        start = end
    return found


SIZE = 4 * HALF_BYTES + 12345


@pytest.mark.parametrize("late", [True, False])
def test_the_gpu_copies_one_half_while_the_transport_has_the_other(
    fake: FakeDriver, late: bool
) -> None:
    fake.late = late
    data = bytes(range(251)) * (SIZE // 251 + 1)
    remote = bytearray(data[:SIZE])
    array = DeviceArray(SIZE)
    link = Recorder(fake, remote)
    StagedLink(link).read_into(pieces_of(array, 10, 5000, HALF_BYTES + 3), FAR)
    assert array.tobytes() == remote
    assert link.sizes == [HALF_BYTES] * 4 + [12345]
    if late:  # the last round's copies are under way while the next round comes
        assert link.pending == [0, 3, 2, 1, 1]
    remote[:] = bytes(SIZE)
    link.pending, link.sizes = [], []
    StagedLink(link).write_from(pieces_of(array), FAR)
    assert remote == data[:SIZE]
    if late:
        assert link.pending == [1, 1, 1, 1, 0]
    assert gpu().chunks.made == 1


def test_memory_of_the_host_in_the_same_batch_is_moved_as_it_is(fake: FakeDriver) -> None:
    remote = bytearray(b"hello, world")
    array, room = DeviceArray(5), bytearray(7)
    link = Recorder(fake, remote)
    of_host = memory_of(room)
    pieces = [
        *pieces_of(array),
        Piece(handle_of(0, bytes(16), 12), 5, of_host.address, 7, of_host),
    ]
    StagedLink(link).read_into(pieces, FAR)
    assert array.tobytes() + room == b"hello, world"


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_transport_that_breaks_half_way_leaves_no_copy_under_way(
    fake: FakeDriver, way: str
) -> None:
    remote, array = bytearray(SIZE), DeviceArray(SIZE)
    link = Recorder(fake, remote)
    link.error = HandleExpired(handle_of(0, bytes(16), SIZE))
    staged = StagedLink(link)
    move = staged.read_into if way == "read" else staged.write_from
    with pytest.raises(HandleExpired):
        move(pieces_of(array), FAR)
    assert fake.begun() == 0
    assert gpu().chunks.made == 1
    link.error, link.sizes = None, []
    move(pieces_of(array), FAR)
    assert gpu().chunks.made == 1


def test_a_gpu_that_fails_is_no_fault_of_the_transport(fake: FakeDriver) -> None:
    remote, array = bytearray(SIZE), DeviceArray(SIZE)
    staged = StagedLink(Recorder(fake, remote))
    fake.fail("cuMemHostAlloc", OUT_OF_MEMORY)
    with pytest.raises(Unavailable, match="CUDA_ERROR_OUT_OF_MEMORY"):
        staged.read_into(pieces_of(array), FAR)
    fake.fail("cuMemcpyAsync", LAUNCH_FAILED, at=2)
    with pytest.raises(Unavailable, match="CUDA_ERROR_LAUNCH_FAILED"):
        staged.read_into(pieces_of(array), FAR)
    staged.read_into(pieces_of(array), FAR)


def test_chunks_are_used_again_and_only_some_are_kept(fake: FakeDriver) -> None:
    chunks = gpu().chunks
    held = [chunks.taken(0) for _ in range(MOST_IDLE + 3)]
    halves = [one.__enter__() for one in held]
    addresses = {half.address for pair in halves for half in pair}
    assert len(addresses) == 2 * (MOST_IDLE + 3)
    ended = weakref.ref(halves[0][0].memory.root)
    del halves
    for one in reversed(held):
        one.__exit__(None, None, None)
    assert chunks.made == MOST_IDLE
    assert fake.held()["pinned"] == MOST_IDLE
    assert ended() is None  # an RDMA card that had it registered was told before it was freed
    with chunks.taken(0) as again:
        assert {half.address for half in again} < addresses
    assert chunks.made == MOST_IDLE


def test_a_chunk_whose_waiting_failed_is_not_used_again(fake: FakeDriver) -> None:
    chunks, array = gpu().chunks, DeviceArray(4)
    taken = chunks.taken(0)
    first, _ = taken.__enter__()
    first.stream.copy(first.address, array.address, 4)
    fake.fail("cuStreamSynchronize", LAUNCH_FAILED)
    with pytest.raises(GpuError):
        taken.__exit__(None, None, None)
    assert chunks.made == 0
    assert fake.held()["pinned"] == 1  # its device may still write there
    fake.forget_pinned()
