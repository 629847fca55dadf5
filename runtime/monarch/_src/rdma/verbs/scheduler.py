"""Work requests over several queue pairs: which to post next, and when a transfer ends. No I/O.

All transfers of a channel share its queue pairs (here: lanes), with at most `depth` open requests
on each. Chunks of several transfers take turns. After each completion the next chunk is posted on
the lane with the most room, so a faster lane moves more. Any failure fails the whole channel,
because a queue pair in error is dead: all open and waiting chunks are returned as not done.

    WAITING -> FLYING     `due` returned it, to be posted
    FLYING  -> LANDED     its completion reports success
    WAITING, FLYING -> LOST   `cut`, or (WAITING only) `withdraw`

Invariants: a lane never has more than `depth` chunks flying. Each chunk is returned by `due` once.
A transfer is over when none of its chunks waits or flies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

SMALLEST, LARGEST, PAGE = 1 << 16, 1 << 20, 4096


class Chunk(msgspec.Struct, frozen=True):
    """One work request: `size` bytes between a local and a remote address, and their keys."""

    address: int
    lkey: int
    remote: int
    rkey: int
    size: int


class Post(msgspec.Struct, frozen=True):
    """A chunk to post, with its lane and its number."""

    lane: int
    number: int
    way: str
    chunk: Chunk


class Transfer(msgspec.Struct, eq=False):
    """A transfer of several chunks. `landed`: the indices of those that are done."""

    way: str
    chunks: Sequence[Chunk]
    waiting: deque[int]
    flying: int = 0
    landed: set[int] = msgspec.field(default_factory=set[int])
    why: str | None = None  # set if the channel was cut before the transfer was over
    status: int | None = None  # of the failed completion, if it belongs to this transfer

    @property
    def over(self) -> bool:
        """Whether none of its chunks waits or flies."""
        return not self.waiting and not self.flying

    @property
    def left(self) -> list[int]:
        """The indices of the chunks that are not done."""
        return [at for at in range(len(self.chunks)) if at not in self.landed]


class Traffic:
    """Schedules the chunks of all transfers of one channel."""

    def __init__(self, lanes: int, depth: int) -> None:
        self.depth = depth
        self.why: str | None = None
        self._room = [depth] * lanes
        self._turns: deque[Transfer] = deque()  # all and only those with waiting chunks
        self._flying: dict[int, tuple[int, Transfer, int]] = {}
        self._next = 1

    def add(self, way: str, chunks: Sequence[Chunk]) -> Transfer:
        """Add a transfer. If the channel was cut, the transfer is lost at once."""
        transfer = Transfer(way, chunks, deque(range(len(chunks))))
        if self.why is not None:
            transfer.waiting.clear()
            transfer.why = self.why
        elif transfer.waiting:
            self._turns.append(transfer)
        return transfer

    def due(self) -> list[Post]:
        """The chunks to post now; they count as flying from here on."""
        posts: list[Post] = []
        while self._turns:
            lane = max(range(len(self._room)), key=self._room.__getitem__)
            if not self._room[lane]:
                break
            transfer = self._turns.popleft()
            at = transfer.waiting.popleft()
            if transfer.waiting:
                self._turns.append(transfer)
            self._room[lane] -= 1
            transfer.flying += 1
            number, self._next = self._next, self._next + 1
            self._flying[number] = lane, transfer, at
            posts.append(Post(lane, number, transfer.way, transfer.chunks[at]))
        return posts

    def landed(self, number: int) -> Transfer | None:
        """A chunk has completed. Returns its transfer if that is over; None if it was cut."""
        found = self._flying.pop(number, None)
        if found is None:
            return None
        lane, transfer, at = found
        self._room[lane] += 1
        transfer.flying -= 1
        transfer.landed.add(at)
        return transfer if transfer.over else None

    def failed(self, number: int, status: int, why: str) -> list[Transfer]:
        """A chunk has failed: cut the channel. Returns the transfers that this ended."""
        found = self._flying.get(number)
        if found is not None:
            found[1].status = status
        return self.cut(why)

    def withdraw(self, transfer: Transfer) -> None:
        """Post no further chunks of a transfer."""
        transfer.waiting.clear()
        if transfer in self._turns:
            self._turns.remove(transfer)

    def cut(self, why: str) -> list[Transfer]:
        """End the channel. Returns the transfers that this ended; none if it was cut before."""
        if self.why is not None:
            return []
        self.why = why
        struck: dict[int, Transfer] = {id(t): t for t in self._turns}
        struck |= {id(transfer): transfer for _, transfer, _ in self._flying.values()}
        for transfer in struck.values():
            transfer.waiting.clear()
            transfer.flying = 0
            transfer.why = why
        self._turns.clear()
        self._flying.clear()
        return list(struck.values())

    def validate(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        assert all(0 <= room <= self.depth for room in self._room)
        assert all(transfer.waiting for transfer in self._turns)
        assert self.why is None or not (self._turns or self._flying)
        if self.why is None:
            used = [0] * len(self._room)
            for lane, _, _ in self._flying.values():
                used[lane] += 1
            assert [self.depth - n for n in used] == self._room
        counted: dict[int, int] = {}
        for _, transfer, at in self._flying.values():
            assert at not in transfer.landed
            counted[id(transfer)] = counted.get(id(transfer), 0) + 1
            assert transfer.flying >= counted[id(transfer)]


def cut_into(size: int, total: int, lanes: int) -> list[tuple[int, int]]:
    """Offset and size of the chunks of a piece, in a call that moves `total` bytes.

    The chunks are shares for each lane, unless these are too small to be worth a request. They
    consist of whole pages, which preserves the alignment.
    """
    share = -(-total // lanes)
    chunk = min(LARGEST, max(SMALLEST, -(-share // PAGE) * PAGE))
    return [(at, min(chunk, size - at)) for at in range(0, size, chunk)]
