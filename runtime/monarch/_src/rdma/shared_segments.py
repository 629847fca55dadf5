"""Memory that other processes of this host can map: `shared_empty`, and mappings of it over there.

Runs in: any process. Owns: a nameless file (memfd) for each allocation, and its descriptor, which
peers open by /proc. Such a file has no name that could be left behind: it is gone with the last
process that has it open, whichever way that ends. Its size is sealed, so that who has it mapped is
never struck by SIGBUS.
Invariants: an allocation has a file of its own, so a handle that is out of date leads to old bytes
of the same allocation at worst; when the last view of it goes, its memory is given back at once,
whoever has it mapped elsewhere.
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
from monarch._src.system.finalize import on_last_reference_dropped


class Segment(msgspec.Struct, eq=False):
    """One allocation: `fd` and inode of its file, where it is mapped, what all views refer to."""

    fd: int
    file: int
    address: int
    size: int
    root: weakref.ref[Any] | None = None


class _Owned:
    """The allocations of this process, by address."""

    def __init__(self) -> None:
        self._lock = GuardedLock(reentrant=True)  # a view may end at any moment, on this thread too
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
    """The allocation that these bytes lie in, and where in it; None if they lie in none."""
    return _owned.around(address, size)


def shared_empty(size: int) -> memoryview:
    """Writable memory of that many bytes, all zero, that peers on this host can map.

    Registered as an RDMABuffer it is read and written by them at the speed of a copy in memory:

        weights = torch.frombuffer(shared_empty(4 * n), dtype=torch.float32)
        buffer = RDMABuffer(weights)

    It is freed when nothing here refers to it any more, and with this process. A fork of this
    process shares it.

    Raises:
        ValueError: the size is not above 0.
        OSError: there is no such memory here, or not enough of it.
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
    # Every view, tensor and array over it refers to this object in the end. What it has as an
    # attribute goes after those who refer to it weakly were told.
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
    """Another process's sealed file, mapped here until nothing refers to this object.

    Raises:
        OSError: it cannot be opened or mapped.
        LookupError: it is not the file that was meant, or could shrink.
    """

    def __init__(self, pid: int, fd: int, size: int, file: int | None, *, writable: bool) -> None:
        opened = shared_memory.open_of(pid, fd, writable=writable)
        try:
            found = os.fstat(opened)
            if file is not None and found.st_ino != file:
                raise LookupError(f"descriptor {fd} of process {pid} is another file by now")
            if not shared_memory.is_sealed(opened, size):
                raise LookupError(f"descriptor {fd} of process {pid} is no sealed file")
            self.size = found.st_size
            self.address = shared_memory.map_shared(opened, self.size, writable=writable)
        finally:
            os.close(opened)
        self.writable = writable
        weakref.finalize(self, shared_memory.unmap, self.address, self.size).atexit = False

    def view(self) -> memoryview:
        """All of it; to be used only while this object is referred to."""
        return view_of(self.address, self.size)
