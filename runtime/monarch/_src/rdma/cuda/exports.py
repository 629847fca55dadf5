"""The allocations of GPUs that other processes of this host may open, and the table of them.

The table is in a file of its own; the header of the table of keys has its descriptor. The slot of a
region of GPU memory has the number of its allocation's entry, and the offset. An entry is written
before the first slot that refers to it is live, and reused only after the last of them has been
retired. So an entry does not change while a process has one of these slots locked.

Layout: a header, then entries of 256 bytes, little-endian. The first entry is an allocation in
which peers test whether they can write. The reason why an allocation cannot be opened is text.

`Exports` is the owner's side of `cuda_ipc`. Runs in: a process that registers memory of a GPU,
always under the lock of its Regions.
Owns: the table's file, and an allocation of 2 MiB that peers write to as a probe.
Invariants: an allocation has one entry, however many regions lie in it (torch cuts its blocks into
many tensors), from its first region to the end of the last. Uses by peers need no action here.
"""

from __future__ import annotations

import os
import struct

import msgspec

from monarch._src.rdma.cuda.driver import IPC_HANDLE_BYTES, UUID_BYTES, GpuError, logged
from monarch._src.rdma.cuda.gpu import Gpu
from monarch._src.rdma.memory import Device, Memory, view_of
from monarch._src.system import shared_memory

MAGIC = b"MONARCHG"
HEADER_BYTES = 4096
ENTRY_BYTES = 256
CAPACITY = 4096
PROBE = 0
_REASON_BYTES = 160
EMPTY, OPEN, CLOSED = 0, 1, 2
_HEADER = struct.Struct("<8sII16s")
_ENTRY = struct.Struct(f"<II{UUID_BYTES}s{IPC_HANDLE_BYTES}sQ{_REASON_BYTES}s")
PROBE_ALLOCATION = 1 << 21  # a smaller one would share its pages with other memory
_FULL = "it has more GPU allocations registered than its table has entries"


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


class _Entry(msgspec.Struct):
    key: tuple[int, int, int]  # device, base, size
    generation: int
    regions: int = 0


class Exports:
    """The exported allocations of this process."""

    def __init__(self, gpu: Gpu, incarnation: bytes, device: Device) -> None:
        """`device`: the one on which the probe is allocated."""
        self._gpu = gpu
        self._entries: dict[int, _Entry] = {}
        self._known: dict[tuple[int, int, int], int] = {}
        self._free: list[int] = []
        self._next = PROBE + 1
        self._generation = 0
        self.file = shared_memory.sealed_file("gpus", TABLE_BYTES)
        self._map = shared_memory.map_shared(self.file, TABLE_BYTES, writable=True)
        self._table = view_of(self._map, TABLE_BYTES)
        begin(self._table, incarnation)
        self._probe: int | None = None
        self._device = device
        try:
            self._probe = gpu.allocate(device.ordinal, PROBE_ALLOCATION)
            export = self._exported(device, self._probe, PROBE_ALLOCATION)
        except GpuError as error:
            export = _closed(device, f"no memory for the probe: {error}")
        put(self._table, PROBE, 0, export)

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self, memory: Memory) -> tuple[int, int, int]:
        """Add a region: the entry of its allocation, the generation, the region's offset in it."""
        device = memory.device
        assert device is not None
        try:
            base, size = self._gpu.allocation(device.ordinal, memory.address)
        except GpuError as error:
            base, size, why = memory.address, memory.size, str(error)
        else:
            inside = base <= memory.address and memory.address + memory.size <= base + size
            why = "" if inside else "it lies in several allocations"
        key = device.ordinal, base, size
        index = self._known.get(key)
        if index is None:
            index = self._new(key, device, why)
        self._entries[index].regions += 1
        return index, self._entries[index].generation, memory.address - base

    def _new(self, key: tuple[int, int, int], device: Device, why: str) -> int:
        _, base, size = key
        if self._free:
            index = self._free.pop()
        elif self._next < CAPACITY - 1:
            index = self._next
            self._next += 1
        else:  # the last entry stands for all allocations that find no room
            index, why, key = CAPACITY - 1, _FULL, (-1, 0, 0)
            if index in self._entries:
                return index
        self._generation = (self._generation + 1) % (1 << 32)
        entry = self._entries[index] = _Entry(key, self._generation)
        self._known[key] = index
        export = _closed(device, why) if why else self._exported(device, base, size)
        put(self._table, index, entry.generation, export)
        return index

    def _exported(self, device: Device, base: int, size: int) -> Export:
        try:
            return Export(device.uuid, self._gpu.export(device.ordinal, base), size)
        except GpuError as error:
            return _closed(device, str(error))

    def leave(self, index: int) -> None:
        """A region of that entry is gone; no process uses it any more."""
        entry = self._entries[index]
        entry.regions -= 1
        if not entry.regions:
            del self._entries[index], self._known[entry.key]
            if index != CAPACITY - 1:
                self._free.append(index)

    def close(self) -> None:
        """Free everything. No region may be left, and no peer may be probing."""
        shared_memory.unmap(self._map, TABLE_BYTES)
        os.close(self.file)
        if self._probe is not None:
            with logged("memory"):
                self._gpu.free(self._device.ordinal, self._probe)


def _closed(device: Device, why: str) -> Export:
    return Export(device.uuid, bytes(IPC_HANDLE_BYTES), 0, why)
