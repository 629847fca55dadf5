"""One submitted batch: the ops, their pieces, and the progress.

Runs in: threads of the pool, several at once; a small transfer in the caller's.
Invariants: when a batch is over, no thread moves its bytes any more, and if all of it is done,
nothing here refers to its memory. A piece counts as done when it is complete, and is never moved
again. If a transport fails, only the pieces on their way have to be moved again.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import msgspec

from monarch._src.rdma.handle import Handle
from monarch._src.rdma.memory import Memory
from monarch._src.rdma.transports.base import Piece, Transport

Way = Literal["read", "write"]
MOST_IN_A_BATCH = 256
HELPED_FROM = 1 << 22  # bytes: for smaller transfers a second thread does not pay


class Op(msgspec.Struct, frozen=True, eq=False):
    """`size` bytes between a region, from `offset` on, and the start of local memory.

    The caller has to check that they lie within the region: a transport relies on it.
    """

    way: Way
    handle: Handle
    local: Memory
    size: int
    offset: int = 0


def batches_of(pieces: Iterable[Piece], largest: int) -> list[list[Piece]]:
    """Group small pieces, so that one system call moves many."""
    batches: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not batches or piece.size > room or len(batches[-1]) == MOST_IN_A_BATCH:
            batches.append([])
            room = largest
        batches[-1].append(piece)
        room -= piece.size
    return batches


class Lane:
    """The ops of one direction with one peer, while they are moved."""

    def __init__(
        self, way: Way, ops: Sequence[Op], progress: Callable[[int], None] | None = None
    ) -> None:
        """`progress`: called with the size of each completed batch, on any thread.

        It is not called any more once `run` has returned.
        """
        self.way: Way = way
        self._progress = progress
        self.size = sum(op.size for op in ops)
        self.on_gpu = any(op.local.device is not None for op in ops)  # some local memory
        self.done = 0
        self.error: BaseException | None = None
        self._left: list[Piece] = [
            Piece(op.handle, op.offset, op.local.address, op.size, op.local) for op in ops
        ]
        self._aside: list[Piece] = []
        self._lock = threading.Lock()
        self._over = threading.Condition(self._lock)
        self._moved: list[Piece] = []
        self._running = 0

    @property
    def finished(self) -> bool:
        """Whether all pieces are done, except those that were put aside."""
        return not self._left

    def put_aside(self, slots: Collection[int]) -> None:
        """Leave the rest of those regions to another link: see `take_up`."""
        self._aside += [piece for piece in self._left if piece.handle.slot in slots]
        self._left = [piece for piece in self._left if piece.handle.slot not in slots]

    def take_up(self) -> bool:
        """Continue with the pieces that were put aside; False if there are none."""
        self._left, self._aside = self._aside, []
        return not self.finished

    def run(
        self, link: Transport, deadline: float, enlist: Callable[[Callable[[], None]], bool]
    ) -> None:
        """Move the rest over that link; raises the first error, once all threads have stopped.

        `enlist`: runs a function on another thread, if there is one.
        """
        self.error = None
        largest = link.piece
        if link.streams > 1 and self.size >= HELPED_FROM:
            largest = min(largest, max(HELPED_FROM // 2, -(-self.size // link.streams)))
        whole = [p for piece in self._left for p in _cut(piece, largest)]
        batches = deque(batches_of(whole, largest))
        self._moved = []

        def help_out() -> None:
            self._work(batches, link, deadline)

        helpers = min(link.streams, len(batches)) - 1 if self.size >= HELPED_FROM else 0
        for _ in range(helpers):
            enlist(help_out)  # a helper that starts late finds no batch
        self._work(batches, link, deadline)
        with self._over:
            while self._running:
                self._over.wait()
            moved = {id(piece) for piece in self._moved}
            self._left = [piece for piece in whole if id(piece) not in moved]
            self._moved = []  # a late helper may still refer to this lane, but not to memory
        if self.error is not None:
            raise self.error

    def _work(self, batches: deque[list[Piece]], link: Transport, deadline: float) -> None:
        move = link.read_into if self.way == "read" else link.write_from
        while True:
            with self._lock:
                if not batches:
                    return
                batch = batches.popleft()
                self._running += 1
            error = None
            try:
                move(batch, deadline)
            except BaseException as raised:
                error = raised
            size = sum(piece.size for piece in batch)
            with self._lock:
                if error is None:
                    self._moved += batch
                    self.done += size
                else:
                    batches.clear()
                    self.error = self.error or error
            try:
                if error is None and self._progress is not None:
                    self._progress(size)
            finally:  # after the call, so that `progress` of this run is over before `run` returns
                del batch  # when the run is over, its memory belongs to the user alone
                with self._over:
                    self._running -= 1
                    self._over.notify_all()


def _cut(piece: Piece, largest: int) -> Iterable[Piece]:
    if piece.size <= largest:
        return (piece,)
    return (
        Piece(
            piece.handle, piece.offset + at, piece.address + at, min(largest, piece.size - at),
            piece.local,
        )
        for at in range(0, piece.size, largest)
    )  # fmt: skip


class Ranges:
    """A set of address ranges."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # disjoint, not adjacent, in order
        self._ends: list[int] = []

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a byte of [start, end) is in the set."""
        at = bisect.bisect_right(self._starts, start) - 1
        if at >= 0 and self._ends[at] > start:
            return True
        return at + 1 < len(self._starts) and self._starts[at + 1] < end

    def add(self, start: int, end: int) -> None:
        """Add [start, end)."""
        first = bisect.bisect_left(self._ends, start)
        last = bisect.bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
