"""Work requests over several queue pairs: what is posted next, and when a transfer is over. No I/O.

All transfers that use a channel share its queue pairs (here: lanes), at most `depth` requests on
each. Chunks of several transfers take turns. Who has a completion posts the next chunk where there
is room, so the faster lane does more. Whatever fails, fails the channel: a queue pair in error does
nothing any more, so all that is on its way or waits is given back as not done.

    WAITING -> FLYING     `due` gave it out to be posted
    FLYING  -> LANDED     its completion says so
    WAITING, FLYING -> LOST   `cut`, or (WAITING only) `withdraw`

Invariants: a lane never has more than `depth` chunks flying; a chunk is given out once; a transfer
is over when none of its chunks waits or flies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

SMALLEST, LARGEST, PAGE = 1 << 16, 1 << 20, 4096


class Chunk(msgspec.Struct, frozen=True):
    """One work request: so many bytes between here and there, and the keys of both."""

    address: int
    lkey: int
    remote: int
    rkey: int
    size: int


class Post(msgspec.Struct, frozen=True):
    """What to post: a chunk, on which lane, under which number."""

    lane: int
    number: int
    way: str
    chunk: Chunk


class Transfer(msgspec.Struct, eq=False):
    """Chunks that somebody waits for. `landed`: those that are done, by their place in the list."""

    way: str
    chunks: Sequence[Chunk]
    waiting: deque[int]
    flying: int = 0
    landed: set[int] = msgspec.field(default_factory=set[int])
    why: str | None = None  # set when the channel was cut before it was over
    status: int | None = None  # of the completion that did it, if it was one of this transfer

    @property
    def over(self) -> bool:
        """Whether nothing of it waits or flies."""
        return not self.waiting and not self.flying

    @property
    def left(self) -> list[int]:
        """The places of the chunks that are not done."""
        return [at for at in range(len(self.chunks)) if at not in self.landed]


class Traffic:
    """See the module's text."""

    def __init__(self, lanes: int, depth: int) -> None:
        self.depth = depth
        self.why: str | None = None
        self._room = [depth] * lanes
        self._turns: deque[Transfer] = deque()  # all and only those that have chunks waiting
        self._flying: dict[int, tuple[int, Transfer, int]] = {}
        self._next = 1

    def add(self, way: str, chunks: Sequence[Chunk]) -> Transfer:
        """Take chunks in. A channel that was cut loses them at once."""
        transfer = Transfer(way, chunks, deque(range(len(chunks))))
        if self.why is not None:
            transfer.waiting.clear()
            transfer.why = self.why
        elif transfer.waiting:
            self._turns.append(transfer)
        return transfer

    def due(self) -> list[Post]:
        """What is to be posted now; it counts as flying from here on."""
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
        """Its completion came. Returns the transfer if that ended it; None for what was cut."""
        found = self._flying.pop(number, None)
        if found is None:
            return None
        lane, transfer, at = found
        self._room[lane] += 1
        transfer.flying -= 1
        transfer.landed.add(at)
        return transfer if transfer.over else None

    def fell(self, number: int, status: int, why: str) -> list[Transfer]:
        """Its completion says that it failed: the channel is cut. Returns whom that ended."""
        found = self._flying.get(number)
        if found is not None:
            found[1].status = status
        return self.cut(why)

    def withdraw(self, transfer: Transfer) -> None:
        """Post no more of it."""
        transfer.waiting.clear()
        if transfer in self._turns:
            self._turns.remove(transfer)

    def cut(self, why: str) -> list[Transfer]:
        """Nothing moves here any more; whom that ended. Again: nobody."""
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
        """AssertionError if what is kept contradicts itself."""
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

    A share for each lane if that is not too small to be worth a request; whole pages, so that what
    is aligned stays so.
    """
    share = -(-total // lanes)
    chunk = min(LARGEST, max(SMALLEST, -(-share // PAGE) * PAGE))
    return [(at, min(chunk, size - at)) for at in range(0, size, chunk)]
