"""Another process of this host, as seen by transports that need no help from it.

Runs in: the process that reads or writes. Owns: a pidfd, a descriptor of the peer's table of keys,
and mappings of its table and its segments; all are closed with the object.
Invariants: the pid in a handle is trusted only while the pidfd reports that the process lives. The
pidfd is opened before the table is found to be that of the right incarnation.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Collection, Generator
from contextlib import AbstractContextManager, contextmanager

from monarch._src.rdma.cuda import exports
from monarch._src.rdma.handle import Handle, Owner
from monarch._src.rdma.key_table import GPU, Entry, KeyView, bytes_for, range_of
from monarch._src.rdma.regions import CAPACITY
from monarch._src.rdma.shared_segments import Mapping
from monarch._src.rdma.transports.base import HandleExpired, OwnerGone, Piece, TransportFailed
from monarch._src.system import shared_memory
from monarch._src.system.process import pidfd

_MAPPED = 256


def process_of(owner: Owner) -> int | None:
    """A pidfd of the owner, or of a later process with its pid; None if it is on another host."""
    return pidfd(owner.pid) if owner.host == shared_memory.this_host() else None


def is_alive(fd: int) -> bool:
    """Whether the process of a pidfd runs."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return not poller.poll(0)


class LocalPeer:
    """A process of this host, with its memory; see the module's docstring.

    Raises:
        OwnerGone: the process has ended.
        TransportFailed: its table cannot be opened.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        if owner.host != shared_memory.this_host():
            raise TransportFailed(f"it is on another host ({owner.host.partition('/')[0]})")
        if owner.page < 0 or not shared_memory.PRESENT:
            raise TransportFailed("this system has no memory that processes can share (Linux has)")
        found = pidfd(owner.pid)
        if found is None:
            raise OwnerGone("the process has ended")
        self._pidfd = found
        weakref.finalize(self, os.close, found).atexit = False
        try:
            self._page = Mapping(owner.pid, owner.page, bytes_for(CAPACITY), None, writable=False)
            self._locks = shared_memory.open_of(owner.pid, owner.page, writable=False)
        except (OSError, LookupError) as error:
            self.check_alive()
            raise TransportFailed(*_not_opened(owner, error)) from error
        weakref.finalize(self, os.close, self._locks).atexit = False
        try:
            self.keys = KeyView(self._page.view())
        except ValueError as error:
            raise TransportFailed(f"process {owner.pid}: {error}") from error
        if self.keys.header.incarnation != owner.incarnation:
            # The owner has ended or left its session, and another process has its pid.
            raise OwnerGone("the process has ended")
        self.check_alive()
        self._lock = threading.Lock()
        self._writing: dict[int, int] = {}
        self._mappings: dict[tuple[int, int], tuple[Mapping, Handle]] = {}
        self._exports: Mapping | None = None

    def check_alive(self) -> None:
        """Raise OwnerGone if the process has ended."""
        if not is_alive(self._pidfd):
            raise OwnerGone("its process has ended")

    def find(self, handle: Handle) -> tuple[Entry, bytes]:
        """The region of a handle, and the bytes of its slot. Raises HandleExpired, OwnerGone."""
        found = self.keys.find(handle.slot, handle.key, handle.size)
        self.check_alive()
        if found is None or (found[0].segment <= GPU) != handle.gpu:  # wrong kind of address
            raise HandleExpired(handle)
        return found

    def still(self, handle: Handle, raw: bytes) -> None:
        """Check that the slot did not change since `find`. Raises HandleExpired, OwnerGone."""
        unchanged = self.keys.raw(handle.slot) == raw
        self.check_alive()
        if not unchanged:
            raise HandleExpired(handle)

    def writing(self, pieces: list[Piece]) -> AbstractContextManager[None]:
        """Keep the regions from being dropped, or their memory freed, meanwhile."""
        return self.keeping({piece.handle.slot for piece in pieces})

    @contextmanager
    def keeping(self, wanted: Collection[int]) -> Generator[None]:
        """The same for given slots, including PROBING."""
        slots = sorted(wanted)  # in the same order in every thread
        taken: list[int] = []
        try:
            for slot in slots:
                self._enter(slot)
                taken.append(slot)
            yield
        finally:
            for slot in taken:
                self._leave(slot)

    def _enter(self, slot: int) -> None:
        # A lock of the kernel belongs to the process, so the threads are counted here.
        with self._lock:
            count = self._writing.get(slot, 0)
            if not count:
                shared_memory.lock_shared(self._locks, *range_of(slot))
            self._writing[slot] = count + 1

    def _leave(self, slot: int) -> None:
        with self._lock:
            count = self._writing.pop(slot) - 1
            if count:
                self._writing[slot] = count
            else:
                shared_memory.unlock(self._locks, *range_of(slot))

    def mapping(self, handle: Handle, entry: Entry, *, writable: bool) -> Mapping:
        """A mapping of the region's segment, made once.

        Raises:
            TransportFailed, HandleExpired, OwnerGone: the segment cannot be mapped.
        """
        key = (entry.segment, entry.file)
        with self._lock:
            known = self._mappings.get(key)
            if known is not None and (known[0].writable or not writable):
                return known[0]
        size = entry.offset + entry.size
        try:
            mapped = Mapping(self.owner.pid, entry.segment, size, entry.file, writable=writable)
        except (OSError, LookupError) as error:
            self.find(handle)
            raise TransportFailed(*_not_opened(self.owner, error)) from error
        with self._lock:
            self._mappings = {
                k: (m, h) for k, (m, h) in list(self._mappings.items())[-_MAPPED:]
                if self.keys.find(h.slot, h.key, h.size) is not None
            }  # fmt: skip
            self._mappings[key] = mapped, handle
        return mapped

    def exports(self) -> memoryview:
        """Its table of GPU allocations, mapped once. Raises TransportFailed, OwnerGone."""
        with self._lock:
            if self._exports is None:
                try:
                    found = Mapping(
                        self.owner.pid,
                        self.keys.gpus,
                        exports.TABLE_BYTES,
                        None,
                        writable=False,
                    )
                except (OSError, LookupError) as error:
                    self.check_alive()
                    raise TransportFailed(*_not_opened(self.owner, error)) from error
                if not exports.belongs_to(found.view(), self.owner.incarnation):
                    self.check_alive()
                    raise TransportFailed(
                        f"process {self.owner.pid} has no table of its GPU memory"
                    )
                self._exports = found
            return self._exports.view()

    @property
    def mapped(self) -> int:
        """How many of its segments are mapped here."""
        return len(self._mappings)


def _not_opened(owner: Owner, error: Exception) -> tuple[str, str]:
    if isinstance(error, PermissionError):
        return (
            f"process {owner.pid} does not let this one open its memory: {error.strerror}",
            "both have to run as the same user, in one container; give CAP_SYS_PTRACE otherwise",
        )
    return f"the memory of process {owner.pid} could not be opened: {error}", ""
