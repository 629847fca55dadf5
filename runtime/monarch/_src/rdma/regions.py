"""The registered memory of this process: which keys reach which bytes, and until when.

Runs in: any process that makes an RDMABuffer. The end of a tensor's storage may come on any thread,
at any moment.
Owns: the table of keys that peers read (`key_table`), the block that they probe, and strong
references to memory whose end Python does not report.
Invariants: a slot is retired before its memory can be freed. Once `drop` has returned, no process
writes to the memory any more. Nothing is copied.

torch and numpy clear weak references to a storage or an array before they free its memory (a test
checks that), so its end retires the slots in time; so do shared segments. Other memory (a
bytearray, an mmap) does not report its end: its export is kept until `drop`.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import msgspec

from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.rdma.cuda.exports import Exports
from monarch._src.rdma.cuda.gpu import gpu
from monarch._src.rdma.handle import KEY_BYTES, Owner
from monarch._src.rdma.key_table import (
    GPU,
    PROBING,
    Entry,
    Header,
    KeyTable,
    bytes_for,
    range_of,
)
from monarch._src.rdma.memory import Device, Memory, fix_in_place, view_of
from monarch._src.rdma.shared_segments import segment_of
from monarch._src.system import shared_memory
from monarch._src.wire.encryption import same_secret

log = logging.getLogger("monarch.rdma")
CAPACITY = 1 << 18
PROBE_BYTES = 1 << 14  # divided into cells, so that several peers may probe at once
PROBE_CELL = 64
PROBE_ATTEMPTS = 4  # another peer may have chosen the same cell
_had: set[tuple[int, bytes]] = set()  # incarnations of this process, one for each session


class Held(msgspec.Struct, eq=False):
    """A registered region, as used by its own process; `keep` keeps the memory alive."""

    address: int
    size: int
    readonly: bool
    keep: Any
    device: Device | None = None


class _Region(msgspec.Struct, eq=False):
    key: bytes
    address: int
    size: int
    readonly: bool
    pin: Any  # keeps the memory alive; None if `root` reports its end
    root: Callable[[], Any] | None
    device: Device | None
    export: int  # the entry of its GPU's allocation; negative if it has none
    users: int = 0  # threads of this process that are moving its bytes
    stops: list[Callable[[], None]] = msgspec.field(default_factory=list[Callable[[], None]])


class _Storage(msgspec.Struct, eq=False):
    ref: Any
    slots: set[int] = msgspec.field(default_factory=set[int])


class Regions:
    """The registered memory of one process, for one session."""

    def __init__(self, node: str, address: str) -> None:
        self._pid = os.getpid()
        self.lock = self._lock = threading.RLock()
        # Called under the lock when a region has left the table, before its memory is freed.
        self.on_retired: Callable[[int], None] | None = None
        self._unused = threading.Condition(self._lock)
        self._regions: dict[int, _Region] = {}
        self._storages: dict[int, _Storage] = {}
        self.registered = 0  # number of storages so far: a second region of one adds none
        self.closed = False
        self._exports: Exports | None = None
        self._retiring = 0  # threads that are waiting for writers in other processes
        incarnation = os.urandom(16)
        _had.add((self._pid, incarnation))
        size = bytes_for(CAPACITY)
        if shared_memory.PRESENT:
            self._files = (
                shared_memory.sealed_file("keys", size),
                shared_memory.sealed_file("probe", PROBE_BYTES),
            )
            self._maps: tuple[tuple[int, int], ...] = tuple(
                (shared_memory.map_shared(fd, n, writable=True), n)
                for fd, n in zip(self._files, (size, PROBE_BYTES), strict=True)
            )
            shared_memory.let_others_trace()
            page, probe = self._files
            where = self._maps[1][0]
            header = Header(incarnation, CAPACITY, where, probe, os.fstat(probe).st_ino)
            memory = view_of(*self._maps[0])
            view_of(*self._maps[1])[:] = probe_pattern(incarnation)
        else:
            self._files, self._maps, page = (), (), -1
            header = Header(incarnation, CAPACITY, 0, -1, 0)
            memory = memoryview(bytearray(size))
        self._table_header = header
        self._table = KeyTable(memory, header)
        self.owner = Owner(incarnation, shared_memory.this_host(), self._pid, page, node, address)

    def __len__(self) -> int:
        return len(self._regions)

    @property
    def exported(self) -> int:
        """How many allocations of GPUs other processes may open."""
        return 0 if self._exports is None else len(self._exports)

    @property
    def probe_address(self) -> int:
        """The address at which peers test whether they can write. Linux only."""
        return self._table_header.probe_address

    def register(self, memory: Memory) -> tuple[int, bytes, bool]:
        """Make memory reachable; returns its slot, its key, and whether it is in a shared segment.

        Raises:
            RuntimeError: the table is full, or this session has ended.
        """
        found = None if memory.device else segment_of(memory.address, memory.size)
        key = os.urandom(KEY_BYTES)
        entry = Entry(key, memory.readonly, memory.address, memory.size)
        if found is not None:
            segment, offset = found
            entry = msgspec.structs.replace(
                entry, segment=segment.fd, file=segment.file, offset=offset
            )
        with uninterrupted(), self._lock:
            if self.closed:
                raise RuntimeError("the session that this process took part in has ended")
            root = memory.root
            slots = None
            if root is not None:
                fix_in_place(memory)
            if found is not None and found[0].root is not None:
                root = found[0].root()
            if root is not None:
                slots = self._storage(root).slots
            export = -1
            if memory.device is not None:
                export, entry = self._exported(memory, memory.device, entry)
            try:
                slot = self._table.enter(entry)
            except RuntimeError:
                self._not_exported(export)
                raise
            region = _Region(
                key, memory.address, memory.size, memory.readonly,
                memory.keep if root is None else None,
                None if root is None else self._storages[id(root)].ref,
                memory.device, export,
            )  # fmt: skip
            self._regions[slot] = region
            if slots is not None:
                slots.add(slot)
            else:
                self.registered += 1
        return slot, key, found is not None

    def _exported(self, memory: Memory, device: Device, entry: Entry) -> tuple[int, Entry]:
        """Export the allocation of GPU memory: its entry, and the entry of the slot with it."""
        if not self._files:  # this system cannot share it
            return -1, msgspec.structs.replace(entry, segment=GPU)
        exports = self._exports
        if exports is None:
            exports = self._exports = Exports(gpu(), self.owner.incarnation, device)
            self._table.publish_exports(exports.file)
        index, generation, offset = exports.enter(memory)
        return index, msgspec.structs.replace(
            entry, segment=GPU - index, file=generation, offset=offset
        )

    def _not_exported(self, export: int) -> None:
        if export >= 0 and self._exports is not None:
            self._exports.leave(export)

    def _storage(self, root: Any) -> _Storage:
        known = self._storages.get(id(root))
        if known is not None and known.ref() is root:
            return known
        number = id(root)
        storage = self._storages[number] = _Storage(
            weakref.ref(root, lambda ref: self._freed(number, ref))
        )
        self.registered += 1
        return storage

    def _freed(self, number: int, ref: Any) -> None:
        """A storage is about to be freed. Called at the end of its life, on any thread."""
        if os.getpid() != self._pid or self.closed:
            return  # in a fork: the table belongs to the parent
        with uninterrupted(), self._lock:
            storage = self._storages.get(number)
            if storage is None or storage.ref is not ref:
                return
            del self._storages[number]
            slots = list(storage.slots)
        for slot in slots:
            self._retire(slot)

    def drop(self, slot: int, key: bytes) -> bool:
        """Revoke a region, and wait for processes that are writing to it.

        Returns whether it existed. Blocks while a peer is writing a piece.
        """
        with uninterrupted(), self._lock:
            region = self._regions.get(slot)
            if region is None or not same_secret(region.key, key):
                return False
        return self._retire(slot)

    def _retire(self, slot: int) -> bool:
        with uninterrupted(), self._lock:
            region = self._regions.pop(slot, None)
            if region is None:
                return False
            self._table.retire(slot)
            root = None if region.root is None else region.root()
            storage = None if root is None else self._storages.get(id(root))
            if storage is not None:
                storage.slots.discard(slot)
                if not storage.slots:
                    del self._storages[id(root)]
            while region.users:
                for stop in region.stops:
                    stop()
                self._unused.wait()
            if self.on_retired is not None:
                self.on_retired(slot)
            self._retiring += 1
        try:
            if self._files:
                place = range_of(slot)
                shared_memory.lock_alone(self._files[0], *place)
                shared_memory.unlock(self._files[0], *place)
            self._table.free(slot)
            with uninterrupted(), self._lock:
                self._not_exported(region.export)
        finally:
            with uninterrupted(), self._lock:
                self._retiring -= 1
                self._unused.notify_all()
        return True

    # --- use in this process: by a transport that it serves, or by its own transfers --------------

    def hold(self, slot: int, key: bytes, stop: Callable[[], None] | None = None) -> Held | None:
        """A region whose memory stays until `release`; None if the key is not valid.

        `stop`: called if the region is dropped meanwhile, so that the use may end early.
        """
        with uninterrupted(), self._lock:
            region = self._regions.get(slot)
            if region is None or not same_secret(region.key, key):
                return None
            keep = region.pin if region.root is None else region.root()
            if keep is None:
                return None
            region.users += 1
            if stop is not None:
                region.stops.append(stop)
            return Held(region.address, region.size, region.readonly, (keep, region), region.device)

    def release(self, held: Held, stop: Callable[[], None] | None = None) -> None:
        """End the use of a region."""
        region = held.keep[1]
        with uninterrupted(), self._lock:
            region.users -= 1
            if stop is not None:
                region.stops.remove(stop)
            if not region.users:
                self._unused.notify_all()

    def close(self) -> None:
        """Retire all regions: no handle of this process is valid any more."""
        with uninterrupted(), self._lock:
            if self.closed:
                return
            for slot in list(self._regions):
                self._retire(slot)
            self.closed = True
            self._storages.clear()
            while self._retiring:  # those threads use the table, whose memory is freed below
                self._unused.wait()
            exports, self._exports = self._exports, None
        if exports is not None and self._files:
            # Wait for peers that are probing: they write to exported memory.
            shared_memory.lock_alone(self._files[0], *range_of(PROBING))
            exports.close()
        for place in self._maps:
            shared_memory.unmap(*place)
        for fd in self._files:
            os.close(fd)

    def validate(self) -> None:
        """Raise AssertionError if the tables contradict each other."""
        with uninterrupted(), self._lock:
            ours = {slot for storage in self._storages.values() for slot in storage.slots}
            assert ours == {s for s, region in self._regions.items() if region.root is not None}
            assert all((r.pin is None) != (r.root is None) for r in self._regions.values())


def was_here(owner: Owner) -> bool:
    """Whether the owner is this process, in this session or an earlier one."""
    return (os.getpid(), owner.incarnation) in _had


def probe_pattern(incarnation: bytes) -> bytes:
    """The initial contents of the probe block of a process."""
    return (incarnation * (PROBE_BYTES // len(incarnation)))[:PROBE_BYTES]


def probe_cell() -> int:
    """A random cell of the probe block, so that peers rarely choose the same at the same time."""
    return int.from_bytes(os.urandom(4), "big") % (PROBE_BYTES // PROBE_CELL) * PROBE_CELL
