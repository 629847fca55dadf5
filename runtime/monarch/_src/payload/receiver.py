"""The receiver's side of payloads in segments: maps them, and returns the loans.

Runs in: any process, once a large payload has come to it; on the receiving thread, and on any
thread where a view ends.
Owns: mappings of other processes' segments. A mapping stays for a while after its last use, because
the sender's next message is likely to use the same segment, and then needs no new mapping.
The receiver may write to a payload. A sole receiver writes to the segment itself; if there are
several, each has a copy-on-write mapping (MAP_PRIVATE).
Invariants: a loan is returned once, when its last view is gone, by a store into the header of the
segment. A loan that a fork of this process may see is never reused. Finalizers only make that store
and unmap.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable
from typing import Any

from monarch._src.payload.sender import FIRST_WORD, HEADER, Mapped, array_type, host_number
from monarch._src.payload.state.leases import RETURNED, SPOILED, TAKEN
from monarch._src.system import shared_memory
from monarch._src.system.last_reference import on_last_reference_dropped
from monarch._src.wire.frames import Borrowed, Payload
from monarch._src.wire.raw_memory import copy_with
from monarch._src.wire.segment_refs import InSegment

KEPT_S = 2.0  # how long a mapping waits for the next message
# Where processors see each other's stores in order, the store that returns a loan is seen after the
# receiver's stores to the segment. On other processors only the owner writes to a segment.
_IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")
_forks = 0


def _forking() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_forking)


class Unreachable(OSError):
    """A segment cannot be mapped here. `lasting`: nor can any other segment of that process."""

    def __init__(self, why: str, *, lasting: bool) -> None:
        super().__init__(why)
        self.lasting = lasting


class _Window:
    """A mapping of all of another process's segment."""

    def __init__(self, lent: InSegment) -> None:
        self.mapped = _mapped(lent, private=False)
        self.words = self.mapped.over()[:HEADER].cast("I")
        self.used = time.monotonic()


def _mapped(lent: InSegment, *, private: bool) -> Mapped:
    try:
        fd = shared_memory.open_of(lent.pid, lent.fd, writable=True)
    except OSError as error:
        raise Unreachable(f"process {lent.pid}: {error.strerror}", lasting=True) from error
    try:
        if os.fstat(fd).st_ino != lent.file or not shared_memory.is_sealed(fd, lent.capacity):
            raise Unreachable(f"descriptor {lent.fd} of process {lent.pid} is not a payload "
                              "segment", lasting=True)  # fmt: skip
        if private:
            address = shared_memory.map_private(fd, lent.capacity)
        else:
            address = shared_memory.map_shared(fd, lent.capacity, writable=True)
        mapped = Mapped(address, lent.capacity)
    except Unreachable:
        raise
    except OSError as error:
        raise Unreachable(str(error), lasting=False) from error
    finally:
        os.close(fd)
    if bytes(mapped.over()[:8]) != lent.key.to_bytes(8, "little"):
        raise Unreachable(f"process {lent.pid} has replaced the segment", lasting=True)
    return mapped


def _loan(window: _Window, word: int, mapped: Mapped) -> object:
    """An object that keeps the window and `mapped` alive; its end returns the loan."""
    words, index, forks, pid = window.words, FIRST_WORD + word, _forks, os.getpid()
    words[index] = TAKEN

    def give_back(_mapped: Mapped = mapped, getpid: Callable[[], int] = os.getpid) -> None:
        if getpid() == pid:
            words[index] = RETURNED if forks == _forks else SPOILED

    return on_last_reference_dropped(give_back)


class SegmentView(Borrowed):
    """See `Borrowed`."""

    __slots__ = ("_lent", "_root")

    def __init__(self, lent: InSegment, root: memoryview) -> None:
        self._lent = lent
        self._root = root

    def __len__(self) -> int:
        return len(self._lent)

    def carried(self, payload: Payload) -> Payload:
        """See `Borrowed`."""
        lent, root = self._lent, self._root
        parts = [root[at : at + length] for at, length in lent.spans]
        return Payload(parts[0], parts[1:]) if lent.body else Payload(payload.body, parts)


class PayloadReceiver:
    """All segments that this process has borrowed."""

    def __init__(self) -> None:
        self._windows: dict[tuple[int, int, int], _Window] = {}
        self.count = 0

    def __bool__(self) -> bool:
        return bool(self._windows)

    def borrow(self, lent: InSegment, position: int) -> SegmentView:
        """Map the segment of a message; `position`: the receiver's index among those of a cast.

        Raises:
            Unreachable: it cannot be mapped.
        """
        if lent.host != host_number():
            raise Unreachable("the sender is on another host", lasting=True)
        if not lent.is_sound(HEADER) or not 0 <= lent.word + position < HEADER // 4 - FIRST_WORD:
            raise Unreachable(f"process {lent.pid} has lent an invalid segment", lasting=True)
        key = (lent.pid, lent.key, lent.capacity)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(lent)
        window.used = time.monotonic()
        if lent.readonly or (lent.sole and _IN_ORDER):
            mapped = window.mapped
        else:
            mapped = _mapped(lent, private=True)
        root: Any = array_type(lent.capacity).from_address(mapped.address)
        root.loan = _loan(window, lent.word + position, mapped)
        self.count += 1
        view = memoryview(root).cast("B")
        return SegmentView(lent, view.toreadonly() if lent.readonly else view)

    def tidy(self, now: float) -> bool:
        """Unmap segments that were unused for `KEPT_S`; False if none is left. Any thread."""
        for key, window in list(self._windows.items()):
            if window.used + KEPT_S <= now:
                self._windows.pop(key, None)
        return bool(self._windows)

    def close(self) -> None:
        """Drop all mappings; memory with views stays mapped. Also in a fork of this process."""
        self._windows.clear()


SHARED = 1 << 27  # from this size on helpers pay: two threads copy 256 MiB in half the time
_MOST = 4


def copy_in_parallel(to: int, source: int, size: int, keep: object) -> None:
    """Copy between two addresses by several threads together, without the GIL.

    For fresh memory, most of the time goes into page faults. `keep`: an object that keeps both
    memory areas alive.
    """
    count = 1 if size < SHARED else min(_MOST, os.cpu_count() or 1)
    each = -(-size // count)

    # A helper refers to `keep` too: the memory stays even if the caller is interrupted.
    def part(at: int, _keep: object) -> None:
        ctypes.memmove(to + at, source + at, min(each, size - at))

    helpers: list[threading.Thread] = []
    for at in range(each, size, each):
        helper = threading.Thread(target=part, args=(at, keep), name="monarch-copy", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # no thread can be started, or the interpreter is shutting down
            part(at, keep)
        else:
            helpers.append(helper)
    part(0, keep)
    for helper in helpers:
        helper.join()


copy_with(copy_in_parallel)  # copies of large payloads are large
