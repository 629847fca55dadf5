"""The owner's side of `cuda_ipc`: the allocations of its GPUs that peers may open.

Runs in: a process that registers memory of a GPU, always under the lock of its Regions.
Owns: the table's file, and an allocation of 2 MiB that peers write to as a probe.
Invariants: an allocation has one entry, however many regions lie in it (torch cuts its blocks into
many tensors), from its first region to the end of the last. Uses by peers need no action here.
"""

from __future__ import annotations

import os

import msgspec

from monarch._src.rdma.cuda import export_table
from monarch._src.rdma.cuda.driver import IPC_HANDLE_BYTES, GpuError, logged
from monarch._src.rdma.cuda.export_table import Export
from monarch._src.rdma.cuda.gpu import Gpu
from monarch._src.rdma.memory import Device, Memory, view_of
from monarch._src.system import shared_memory

PROBE_ALLOCATION = 1 << 21  # a smaller one would share its pages with other memory
_FULL = "it has more GPU allocations registered than its table has entries"


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
        self._next = export_table.PROBE + 1
        self._generation = 0
        self.file = shared_memory.sealed_file("gpus", export_table.TABLE_BYTES)
        self._map = shared_memory.map_shared(self.file, export_table.TABLE_BYTES, writable=True)
        self._table = view_of(self._map, export_table.TABLE_BYTES)
        export_table.begin(self._table, incarnation)
        self._probe: int | None = None
        self._device = device
        try:
            self._probe = gpu.allocate(device.ordinal, PROBE_ALLOCATION)
            export = self._exported(device, self._probe, PROBE_ALLOCATION)
        except GpuError as error:
            export = _closed(device, f"no memory for the probe: {error}")
        export_table.put(self._table, export_table.PROBE, 0, export)

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
        elif self._next < export_table.CAPACITY - 1:
            index = self._next
            self._next += 1
        else:  # the last entry stands for all allocations that find no room
            index, why, key = export_table.CAPACITY - 1, _FULL, (-1, 0, 0)
            if index in self._entries:
                return index
        self._generation = (self._generation + 1) % (1 << 32)
        entry = self._entries[index] = _Entry(key, self._generation)
        self._known[key] = index
        export = _closed(device, why) if why else self._exported(device, base, size)
        export_table.put(self._table, index, entry.generation, export)
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
            if index != export_table.CAPACITY - 1:
                self._free.append(index)

    def close(self) -> None:
        """Free everything. No region may be left, and no peer may be probing."""
        shared_memory.unmap(self._map, export_table.TABLE_BYTES)
        os.close(self.file)
        if self._probe is not None:
            with logged("memory"):
                self._gpu.free(self._device.ordinal, self._probe)


def _closed(device: Device, why: str) -> Export:
    return Export(device.uuid, bytes(IPC_HANDLE_BYTES), 0, why)
