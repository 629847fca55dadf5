"""The table of GPU allocations that other processes of this host may open. No I/O.

It is in a file of its own; the header of the table of keys has its descriptor. The slot of a region
of GPU memory has the number of its allocation's entry, and the offset. An entry is written before
the first slot that refers to it is live, and reused only after the last of them has been retired.
So an entry does not change while a process has one of these slots locked.

Layout: a header, then entries of 256 bytes, little-endian. The first entry is an allocation in
which peers test whether they can write. The reason why an allocation cannot be opened is text.
"""

from __future__ import annotations

import struct

import msgspec

from monarch._src.rdma.cuda.driver import IPC_HANDLE_BYTES, UUID_BYTES

MAGIC = b"MONARCHG"
HEADER_BYTES = 4096
ENTRY_BYTES = 256
CAPACITY = 4096
PROBE = 0
_REASON_BYTES = 160
EMPTY, OPEN, CLOSED = 0, 1, 2
_HEADER = struct.Struct("<8sII16s")
_ENTRY = struct.Struct(f"<II{UUID_BYTES}s{IPC_HANDLE_BYTES}sQ{_REASON_BYTES}s")
assert _ENTRY.size == ENTRY_BYTES
TABLE_BYTES = HEADER_BYTES + CAPACITY * ENTRY_BYTES


class Export(msgspec.Struct, frozen=True):
    """One allocation: its device, its IPC handle, its size; or why it cannot be opened."""

    uuid: bytes
    handle: bytes
    size: int
    reason: str = ""


def begin(memory: memoryview, incarnation: bytes) -> None:
    """Begin a table in memory that is all zero."""
    _HEADER.pack_into(memory, 0, MAGIC, 1, CAPACITY, incarnation)


def belongs_to(memory: memoryview, incarnation: bytes) -> bool:
    """Whether it is the table of that process."""
    return len(memory) >= TABLE_BYTES and _HEADER.unpack_from(memory) == (
        MAGIC, 1, CAPACITY, incarnation
    )  # fmt: skip


def put(memory: memoryview, index: int, generation: int, export: Export) -> None:
    """Write an entry."""
    reason = export.reason.encode()[:_REASON_BYTES]
    state = CLOSED if reason else OPEN
    _ENTRY.pack_into(
        memory, HEADER_BYTES + index * ENTRY_BYTES, state, generation, export.uuid, export.handle,
        export.size, reason,
    )  # fmt: skip


def get(memory: memoryview, index: int, generation: int) -> Export | None:
    """Read an entry; None if there is none of that generation."""
    if not 0 <= index < CAPACITY:
        return None
    state, number, uuid, handle, size, reason = _ENTRY.unpack_from(
        memory, HEADER_BYTES + index * ENTRY_BYTES
    )
    if state not in (OPEN, CLOSED) or number != generation:
        return None
    text = "" if state == OPEN else reason.rstrip(b"\0").decode(errors="replace")
    return Export(uuid, handle, size, text)
