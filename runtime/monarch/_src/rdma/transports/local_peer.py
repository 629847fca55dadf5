"""Another process of this host as seen by a transport that needs no help from it.

Runs in: the process that reads or writes. Owns: a pidfd, one descriptor of the peer's table of
keys and mappings of its table and its segments; all go with the object.
Invariants: the pid in a handle is trusted only while the pidfd, opened before the table was found
to be that of the right incarnation, says that the process lives.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Collection, Generator
from contextlib import AbstractContextManager, contextmanager

from monarch._src.rdma.cuda import export_table
from monarch._src.rdma.handle import Handle, Owner
from monarch._src.rdma.key_table import GPU, Entry, KeyView, bytes_for, range_of
from monarch._src.rdma.regions import CAPACITY
from monarch._src.rdma.shared_segments import Mapping
from monarch._src.rdma.transports.base import HandleExpired, OwnerGone, Piece, TransportFailed
from monarch._src.system import shared_memory
from monarch._src.system.process import pidfd

_MAPPED = 256


def process_of(owner: Owner) -> int | None:
    """A pidfd of the owner, or of a later process with its number; None if it is elsewhere."""
    return pidfd(owner.pid) if owner.host == shared_memory.this_host() else None


def is_alive(fd: int) -> bool:
    """Whether the process of a pidfd runs."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return not poller.poll(0)


class Peer:
    """See the module's text.

    Raises:
        Gone: there is no such process any more.
        Broken: its table cannot be opened from here.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        if owner.host != shared_memory.this_host():
            raise TransportFailed(f"it is on another host ({owner.host.partition('/')[0]})")
        if owner.page < 0 or not shared_memory.PRESENT:
            raise TransportFailed(
                "this system has no memory that processes can look into (Linux has)"
            )
        found = pidfd(owner.pid)
        if found is None:
            raise OwnerGone("there is no such process any more")
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
            # Its own process has ended, or left its session, and this is another with its pid.
            raise OwnerGone("there is no such process any more")
        self.check_alive()
        self._lock = threading.Lock()
        self._writing: dict[int, int] = {}
        self._mappings: dict[tuple[int, int], tuple[Mapping, Handle]] = {}
        self._exports: Mapping | None = None

    def check_alive(self) -> None:
        """Raises Gone."""
        if not is_alive(self._pidfd):
            raise OwnerGone("its process has ended")

    def find(self, handle: Handle) -> tuple[Entry, bytes]:
        """What a handle names, and what its slot holds. Raises Stale, Gone."""
        found = self.keys.find(handle.slot, handle.key, handle.size)
        self.check_alive()
        if found is None or (found[0].segment <= GPU) != handle.gpu:  # its address is another kind
            raise HandleExpired(handle)
        return found

    def still(self, handle: Handle, raw: bytes) -> None:
        """What was found was there all the while. Raises Stale, Gone."""
        unchanged = self.keys.raw(handle.slot) == raw
        self.check_alive()
        if not unchanged:
            raise HandleExpired(handle)

    def writing(self, pieces: list[Piece]) -> AbstractContextManager[None]:
        """Keep the regions from being dropped, or their memory freed, meanwhile."""
        return self.keeping({piece.handle.slot for piece in pieces})

    @contextmanager
    def keeping(self, wanted: Collection[int]) -> Generator[None]:
        """The same, by their slots; PROBING is one too."""
        slots = sorted(wanted)  # in one order, whoever locks
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
        # The kernel counts a lock once for all threads of ours, so we count them.
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
        """The segment that a region lies in, mapped here once. Raises Broken, Stale, Gone."""
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
        """Its table of GPU allocations, mapped once. Raises Broken, Gone."""
        with self._lock:
            if self._exports is None:
                try:
                    found = Mapping(
                        self.owner.pid,
                        self.keys.gpus,
                        export_table.TABLE_BYTES,
                        None,
                        writable=False,
                    )
                except (OSError, LookupError) as error:
                    self.check_alive()
                    raise TransportFailed(*_not_opened(self.owner, error)) from error
                if not export_table.belongs_to(found.view(), self.owner.incarnation):
                    self.check_alive()
                    raise TransportFailed(
                        f"process {self.owner.pid} has no table of its GPU memory"
                    )
                self._exports = found
            return self._exports.view()

    @property
    def mapped(self) -> int:
        """How many segments of it are mapped here."""
        return len(self._mappings)


def _not_opened(owner: Owner, error: Exception) -> tuple[str, str]:
    if isinstance(error, PermissionError):
        return (
            f"process {owner.pid} may not be looked into from here: {error.strerror}",
            "both have to run as the same user, in one container; give CAP_SYS_PTRACE otherwise",
        )
    return f"the memory of process {owner.pid} could not be opened: {error}", ""
