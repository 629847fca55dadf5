"""The table of live keys: shared memory that its owner writes and every peer on the host reads.

No I/O: it works on the memory that it is given. A reader looks up a handle *before* a one-sided
copy and again *after* it. If the same key was there both times, the region was registered all the
while: keys are random and never reused, and a slot is retired before its memory is freed or moved.
Otherwise the copy is discarded. The owner runs no code for this, so it may compute, hold the GIL,
or be stopped.

That suffices for reads. A write must not *happen* after the memory is gone. So a writer locks the
range of the slot in the file of this table (`Peer.writing`), and a thread that retires a slot waits
for the lock (`Regions`). If the writer dies, the kernel releases it.

Layout: a header, then slots of 64 bytes, all little-endian.
Invariants: `state` is written last when a slot is made live and first when it is retired; a slot
whose state is DEAD has no key that a reader would accept.
"""

from __future__ import annotations

import struct

import msgspec

from monarch._src.wire.encryption import same_secret

MAGIC = b"MONARCHK"
HEADER_BYTES = 4096
SLOT_BYTES = 64
DEAD, LIVE = 0, 1
READ_ONLY = 1
_HEADER = struct.Struct("<8sII16sQiiQ")
_SLOT = struct.Struct("<II16sQQiIQQ")
_STATE = struct.Struct("<I")
_GPUS = struct.Struct("<i")
_GPUS_AT = 44  # in the header
GPU = -2  # values of `segment` up to this one stand for memory of a GPU
assert _SLOT.size == SLOT_BYTES


class Header(msgspec.Struct, frozen=True):
    """The owner of the table, and the address at which peers test whether they can write."""

    incarnation: bytes
    capacity: int
    probe_address: int
    probe_fd: int
    probe_file: int


class Entry(msgspec.Struct, frozen=True):
    """A live region. `segment`: the owner's descriptor of the shared file that contains it, or -1.

    For memory of a GPU, `address` is the GPU's; `segment` is GPU minus the number of its
    allocation in the export table (`cuda/exports.py`), and `file` that entry's generation.
    """

    key: bytes
    readonly: bool
    address: int
    size: int
    segment: int = -1
    file: int = 0  # the inode of that file, because descriptors are reused
    offset: int = 0


def bytes_for(capacity: int) -> int:
    """The size of a table in bytes; pages that are never written cost nothing."""
    return HEADER_BYTES + capacity * SLOT_BYTES


PROBING = -1  # not a slot: the range that is locked by a probe of GPU memory


def range_of(slot: int) -> tuple[int, int]:
    """The range of a slot in the file, which a writer locks."""
    return HEADER_BYTES + slot * SLOT_BYTES, SLOT_BYTES


class KeyTable:
    """The owner's side."""

    def __init__(self, memory: memoryview, header: Header) -> None:
        self._memory = memory
        self.capacity = header.capacity
        self._free: list[int] = []
        self._fresh = iter(range(header.capacity))
        _HEADER.pack_into(
            memory, 0, MAGIC, 2, header.capacity, header.incarnation, header.probe_address,
            header.probe_fd, -1, header.probe_file,
        )  # fmt: skip

    def enter(self, entry: Entry) -> int:
        """Make a region live; returns its slot.

        Raises:
            RuntimeError: the table is full.
        """
        try:  # atomic steps, because a finalizer may run `free` in between on this thread
            slot = self._free.pop()
        except IndexError:
            slot = next(self._fresh, -1)
            if slot < 0:
                raise RuntimeError(
                    f"{self.capacity:,} RDMABuffers of this process are live: `drop()` those that "
                    "are no longer needed"
                ) from None
        at = HEADER_BYTES + slot * SLOT_BYTES
        flags = READ_ONLY if entry.readonly else 0
        packed = _SLOT.pack(
            DEAD, flags, entry.key, entry.address, entry.size, entry.segment, 0, entry.file,
            entry.offset,
        )  # fmt: skip
        self._memory[at : at + SLOT_BYTES] = packed
        _STATE.pack_into(self._memory, at, LIVE)
        return slot

    def publish_exports(self, fd: int) -> None:
        """Publish the table of GPU allocations. Call it before a region in one is entered."""
        _GPUS.pack_into(self._memory, _GPUS_AT, fd)

    def retire(self, slot: int) -> None:
        """Refuse all handles of a slot from now on. It is not reused before `free`."""
        _STATE.pack_into(self._memory, HEADER_BYTES + slot * SLOT_BYTES, DEAD)

    def free(self, slot: int) -> None:
        """Allow a retired slot to be reused."""
        self._free.append(slot)


class KeyView:
    """A reader's side, of memory that it may only read."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        magic, version, capacity, incarnation, address, fd, _, file = _HEADER.unpack_from(memory)
        if magic != MAGIC or version != 2 or len(memory) < bytes_for(capacity):
            raise ValueError("this is not a table of keys of this version")
        self.header = Header(incarnation, capacity, address, fd, file)

    @property
    def gpus(self) -> int:
        """The owner's descriptor of its table of GPU allocations; -1 if it has none."""
        return _GPUS.unpack_from(self._memory, _GPUS_AT)[0]

    def raw(self, slot: int) -> bytes:
        """The present bytes of a slot: equal bytes before and after mean that it did not change."""
        at = HEADER_BYTES + slot * SLOT_BYTES
        return bytes(self._memory[at : at + SLOT_BYTES])

    def find(self, slot: int, key: bytes, size: int) -> tuple[Entry, bytes] | None:
        """The live region of a handle, and the bytes of its slot; None if there is none."""
        if not 0 <= slot < self.header.capacity:
            return None
        raw = self.raw(slot)
        state, flags, held, address, held_size, segment, _, file, offset = _SLOT.unpack(raw)
        if state != LIVE or not same_secret(held, key) or held_size != size:
            return None
        entry = Entry(held, bool(flags & READ_ONLY), address, held_size, segment, file, offset)
        return entry, raw
