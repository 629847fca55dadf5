"""The table of live keys: shared memory that its owner writes and every peer of the host reads.

No I/O: works on whatever memory it is given. A reader looks a handle up here *before* a one-sided
copy and again *after* it. If the same key stood there both times, the region was registered all the
while (keys are random and never come back), and what is registered is neither freed nor moved: a
slot is retired before its memory goes. If not, what was copied is not handed out. The owner runs no
code for it, so it may compute, hold the interpreter's lock, or be stopped.

That is enough for reading. A write must not *happen* after the memory is gone, so a writer holds
the range of the slot in the file of this table locked (`Peer.writing`), and who retires a slot
waits for it (`Regions`). Should the writer die, the kernel unlocks.

Layout: a header, then slots of 64 bytes, all little-endian.
Invariants: `state` is written last when a slot is made live and first when it is retired; a slot
whose state is DEAD has no key that a reader would take.
"""

from __future__ import annotations

import struct

import msgspec

from monarch._src.rdma.handle import same

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
GPU = -2  # what `segment` is for memory of a GPU, or less
assert _SLOT.size == SLOT_BYTES


class Header(msgspec.Struct, frozen=True):
    """Whose table this is, and where peers may write to see whether they can."""

    incarnation: bytes
    capacity: int
    probe_address: int
    probe_fd: int
    probe_file: int


class Entry(msgspec.Struct, frozen=True):
    """A live region. `segment` is the owner's descriptor of the shared file it lies in, or -1.

    For memory of a GPU `address` is the GPU's, `segment` GPU less the number of its allocation's
    entry in the other table (`cuda/words.py`), `file` that entry's generation.
    """

    key: bytes
    readonly: bool
    address: int
    size: int
    segment: int = -1
    file: int = 0  # the inode of that file: descriptors are used again
    offset: int = 0


def bytes_for(capacity: int) -> int:
    """How large the memory of a table is; pages that nobody writes cost nothing."""
    return HEADER_BYTES + capacity * SLOT_BYTES


PROBING = -1  # a slot that is none: what is locked by who probes memory of a GPU


def range_of(slot: int) -> tuple[int, int]:
    """Where a slot lies in the file: what a writer locks."""
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
        """Make a region live; its slot.

        Raises:
            RuntimeError: the table is full.
        """
        try:  # single steps, since the end of some storage may come in between, on this thread
            slot = self._free.pop()
        except IndexError:
            slot = next(self._fresh, -1)
            if slot < 0:
                raise RuntimeError(
                    f"{self.capacity:,} RDMABuffers of this process are live: `drop()` those that "
                    "nobody needs"
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

    def tell_of_gpus(self, fd: int) -> None:
        """From here on there is a table of GPU allocations; before any region lies in one."""
        _GPUS.pack_into(self._memory, _GPUS_AT, fd)

    def retire(self, slot: int) -> None:
        """From here on no handle leads there. The slot is not used again before `free`."""
        _STATE.pack_into(self._memory, HEADER_BYTES + slot * SLOT_BYTES, DEAD)

    def free(self, slot: int) -> None:
        """A retired slot may be used again."""
        self._free.append(slot)


class KeyView:
    """A reader's side, of memory that it may only read."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        magic, version, capacity, incarnation, address, fd, _, file = _HEADER.unpack_from(memory)
        if magic != MAGIC or version != 2 or len(memory) < bytes_for(capacity):
            raise ValueError("this is no table of keys of this version")
        self.header = Header(incarnation, capacity, address, fd, file)

    @property
    def gpus(self) -> int:
        """The owner's descriptor of its table of GPU allocations; -1 as long as it has none."""
        return _GPUS.unpack_from(self._memory, _GPUS_AT)[0]

    def raw(self, slot: int) -> bytes:
        """What a slot holds now: equal bytes before and after mean that nothing has changed."""
        at = HEADER_BYTES + slot * SLOT_BYTES
        return bytes(self._memory[at : at + SLOT_BYTES])

    def find(self, slot: int, key: bytes, size: int) -> tuple[Entry, bytes] | None:
        """The live region that a handle names, and what its slot holds; None if there is none."""
        if not 0 <= slot < self.header.capacity:
            return None
        raw = self.raw(slot)
        state, flags, held, address, held_size, segment, _, file, offset = _SLOT.unpack(raw)
        if state != LIVE or not same(held, key) or held_size != size:
            return None
        entry = Entry(held, bool(flags & READ_ONLY), address, held_size, segment, file, offset)
        return entry, raw
