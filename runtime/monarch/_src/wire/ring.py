"""Messages from one process to several, in memory that all of them see. No I/O.

    u64 written | u64 read, one a reader | ... | records

Numbers are as the machine has them. Positions count bytes since the ring was made, so they only
grow; a record lies at its position modulo the size of the room for records:

    u32 size, u32 nothing, u64 a reader: what it has to follow | the message | up to 8 bytes

One process writes, each reader takes every record, once, and says how far it has come. Nobody waits
for anybody: what finds no room is not written. A record is whole by the time that `written` says
so, on processors that let others see writes in the order in which they were made. Positions are
written through a view of 64-bit numbers, each by one store: `struct` fills with zeros first, which
others would see.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from mmap import mmap

from monarch._src.wire.frames import Buffer
from monarch._src.wire.stream import StreamError

ROOM = 1 << 18  # bytes, a multiple of 8, for records
LONGEST = 1 << 12  # bytes of a message
_ALIGNED = 8
_TO_THE_END = 0xFFFFFFFF  # in place of a size: the next record lies at the begin of the room
_SIZE = struct.Struct("=II")


def size_for(readers: int) -> int:
    """Bytes of memory for a ring with so many readers."""
    # At the end of the room may be no record, which is looked at as one.
    return _first(readers) + ROOM + _record(readers).size


def _first(readers: int) -> int:
    return (1 + readers) * _ALIGNED


def _record(readers: int) -> struct.Struct:
    return struct.Struct(f"=II{readers}Q")


def _positions(memory: mmap, readers: int) -> memoryview:
    return memoryview(memory)[: _first(readers)].cast("Q")


class RingWriter:
    """The side that writes; one thread at a time. The memory is all zeros when it begins."""

    __slots__ = ("_at", "_first", "_head", "_memory", "_positions", "_until")

    def __init__(self, memory: mmap, readers: int) -> None:
        self._memory = memory
        self._positions = _positions(memory, readers)
        self._first = _first(readers)
        self._head = _record(readers)
        self._at = 0
        self._until = ROOM  # as far as there is room for sure

    def write(self, follows: Sequence[int], message: Buffer) -> bool:
        """Add a message; False if it is too long, or somebody has not read what takes the room.

        `follows`: for each reader, what it is told with it.
        """
        memory, at, head = self._memory, self._at, self._head
        size = len(message)
        if size > LONGEST:
            return False
        takes = (head.size + size + _ALIGNED - 1) & -_ALIGNED
        offset = at % ROOM
        skipped = ROOM - offset if takes > ROOM - offset else 0
        if at + skipped + takes > self._until:
            self._until = ROOM + min(self._positions[1:])
            if at + skipped + takes > self._until:
                return False
        if skipped:
            _SIZE.pack_into(memory, self._first + offset, _TO_THE_END, 0)
            at, offset = at + skipped, 0
        begin = self._first + offset
        head.pack_into(memory, begin, size, 0, *follows)
        begin += head.size
        memory[begin : begin + size] = message
        self._at = at + takes
        self._positions[0] = self._at
        return True

    def release(self) -> None:
        """The memory is about to be closed. Idempotent."""
        self._positions.release()


class RingReader:
    """One of those who read; one thread at a time."""

    __slots__ = ("_at", "_first", "_head_size", "_look", "_mark", "_memory", "_positions")

    def __init__(self, memory: mmap, readers: int, reader: int) -> None:
        """`reader`: which of them it is, from 0."""
        self._memory = memory
        self._first = _first(readers)
        self._head_size = _record(readers).size
        self._look = struct.Struct(f"=I{4 + 8 * reader}xQ").unpack_from
        self._positions = _positions(memory, readers)
        self._mark = 1 + reader
        self._at = 0

    def read(self) -> list[tuple[int, bytes]]:
        """What was written since: what each message has to follow, and the message.

        Each has to follow as much as the one before it, or more.

        Raises:
            StreamError: somebody has written what is no ring.
        """
        memory, at, head_size, look = self._memory, self._at, self._head_size, self._look
        end = self._positions[0]
        if at == end:
            return []
        if not 0 < end - at <= ROOM:
            raise StreamError(f"a ring of {ROOM} bytes holds nothing from {at} up to {end}")
        found: list[tuple[int, bytes]] = []
        while at < end:
            offset = at % ROOM
            begin = self._first + offset
            size, follows = look(memory, begin)
            if size == _TO_THE_END:
                at += ROOM - offset
                continue
            if size > LONGEST:
                raise StreamError(f"a ring holds no message of {size} bytes")
            begin += head_size
            found.append((follows, memory[begin : begin + size]))
            at += (head_size + size + _ALIGNED - 1) & -_ALIGNED
        if at != end:
            raise StreamError(f"a message in a ring ends at {at}, and what was written at {end}")
        self._at = at
        self._positions[self._mark] = at
        return found

    def release(self) -> None:
        """The memory is about to be closed. Idempotent."""
        self._positions.release()
