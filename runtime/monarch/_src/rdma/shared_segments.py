"""Memory that other processes of this host can map: `shared_empty`, and mappings in peers.

Runs in: any process. Owns: an anonymous file (memfd) for each allocation, and its descriptor, which
peers open through /proc. Such a file leaves no name behind: it is freed with the last process that
has it open, however that process ends. Its size is sealed, so that a process that has mapped it
cannot be hit by SIGBUS.
Invariants: each allocation has its own file, so that at worst an outdated handle leads to old bytes
of the same allocation. When the last view of an allocation ends, its memory is freed at once, even
if other processes have it mapped.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import weakref
from functools import partial
from typing import Any

import msgspec

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.rdma.memory import view_of
from monarch._src.system import shared_memory
from monarch._src.system.last_reference import on_last_reference_dropped


class Segment(msgspec.Struct, eq=False):
    """One allocation: the descriptor and inode of its file, its address, the root of all views."""

    fd: int
    file: int
    address: int
    size: int
    root: weakref.ref[Any] | None = None


class _Owned:
    """The allocations of this process, by address."""

    def __init__(self) -> None:
        # A finalizer may run at any moment, also on this thread.
        self._lock = GuardedLock(reentrant=True)
        self._addresses: list[int] = []
        self._segments: dict[int, Segment] = {}

    def add(self, segment: Segment) -> None:
        with self._lock:
            self._segments[segment.address] = segment
            bisect.insort(self._addresses, segment.address)

    def remove(self, segment: Segment) -> None:
        with self._lock:
            del self._segments[segment.address]
            self._addresses.remove(segment.address)

    def around(self, address: int, size: int) -> tuple[Segment, int] | None:
        with self._lock:
            at = bisect.bisect_right(self._addresses, address) - 1
            if at < 0:
                return None
            segment = self._segments[self._addresses[at]]
        offset = address - segment.address
        return (segment, offset) if offset + size <= segment.size else None


_owned = _Owned()


def segment_of(address: int, size: int) -> tuple[Segment, int] | None:
    """The allocation that contains these bytes, and their offset in it; None if there is none."""
    return _owned.around(address, size)


def shared_empty(size: int) -> memoryview:
    """Writable memory of that many bytes, all zero, that peers on this host can map.

    If it is registered as an RDMABuffer, they read and write it at the speed of a memory copy:

        weights = torch.frombuffer(shared_empty(4 * n), dtype=torch.float32)
        buffer = RDMABuffer(weights)

    It is freed when nothing in this process refers to it any more, or with this process. A fork
    of this process shares it.

    Raises:
        ValueError: the size is not above 0.
        OSError: this system has no such memory, or not enough of it.
    """
    if size <= 0:
        raise ValueError(f"shared_empty({size}): give a number of bytes above 0")
    if not shared_memory.PRESENT:
        raise OSError("shared_empty needs Linux (memfd); register any other memory instead")
    fd = shared_memory.sealed_file("data", size)
    try:
        address = shared_memory.map_shared(fd, size, writable=True)
    except BaseException:
        os.close(fd)
        raise
    segment = Segment(fd, os.fstat(fd).st_ino, address, size)
    # Every view, tensor and array over it refers to this object in the end. Python clears an
    # object's weak references before it drops its attributes, so the regions learn of it first.
    root: Any = (ctypes.c_ubyte * size).from_address(address)
    segment.root = weakref.ref(root)
    root.life = on_last_reference_dropped(partial(_give_back, segment, os.getpid()))
    _owned.add(segment)
    return memoryview(root).cast("B")


def _give_back(segment: Segment, pid: int) -> None:
    _owned.remove(segment)
    if os.getpid() == pid:  # not a fork, whose parent still uses it
        shared_memory.free_pages(segment.fd, segment.size)
    shared_memory.unmap(segment.address, segment.size)
    os.close(segment.fd)


class Mapping:
    """Another process's sealed file, mapped while this object is referred to.

    Raises:
        OSError: it cannot be opened or mapped.
        LookupError: the descriptor has another file by now, or one that is not sealed.
    """

    def __init__(self, pid: int, fd: int, size: int, file: int | None, *, writable: bool) -> None:
        opened = shared_memory.open_of(pid, fd, writable=writable)
        try:
            found = os.fstat(opened)
            if file is not None and found.st_ino != file:
                raise LookupError(f"descriptor {fd} of process {pid} has another file by now")
            if not shared_memory.is_sealed(opened, size):
                raise LookupError(f"descriptor {fd} of process {pid} has a file without seals")
            self.size = found.st_size
            self.address = shared_memory.map_shared(opened, self.size, writable=writable)
        finally:
            os.close(opened)
        self.writable = writable
        weakref.finalize(self, shared_memory.unmap, self.address, self.size).atexit = False

    def view(self) -> memoryview:
        """All of it. Use it only while this object is referred to."""
        return view_of(self.address, self.size)
