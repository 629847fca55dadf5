"""The status board: the state of every rank of a mesh, in one memory-mapped file for each host.

Each proc writes its own slot when it begins and ends an endpoint (0.5 us). The agent reads the
slots on request, and the slot of a dead proc still names the endpoint that it died in. No message
is sent, so the board shows a rank that computes, holds the GIL or is stopped as well.

Where several endpoints overlap, the slot names the running one that began last.

Slot, 256 bytes, little endian: u8 number of writes, modulo 256; at byte 8 + 120 * (that number
modulo 2) the last write: u32 state, u32 running endpoints, u64 messages, u64 errors, i64 busy, i64
since (nanoseconds of the system-wide monotonic clock), 32 bytes actor, 48 bytes endpoint (UTF-8,
zero-padded). The next write goes to the other half and then increments the number. A reader that
finds the number unchanged has read a consistent write, even if the writer was stopped or killed in
the middle.

The agent writes the last 8 bytes, u64: 256 times the number of bytes that it has read from the
rank's output pipes, plus 2 times the number of reads modulo 128, plus 1 during a read. The rank
derives from it the output that has not been read (`monarch._src.logs.output_counters`).

`busy` is the number of nanoseconds in which anything ran; while an endpoint runs, its start time is
subtracted. The reader adds the current time, so no process has to write in between.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import threading
from pathlib import Path
from time import monotonic_ns
from typing import TypeAlias

import msgspec

SLOT = 256
_FORMAT = struct.Struct("<IIQQqq32s48s")
_LOOKS = 100
# Errors of a file system without such a call, where the C library does not emulate it (musl).
_CANNOT_RESERVE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
NONE, IDLE, BUSY, LEFT = 0, 1, 2, 3
Running: TypeAlias = "tuple[int, bytes, bytes]"  # since when (ns), actor, endpoint


class Status(msgspec.Struct, frozen=True):
    """One slot as read. `since_s` is the number of seconds in this state.

    Of `messages`, `errors` failed; endpoints ran for `busy_s` seconds until now.
    """

    state: int
    running: int
    messages: int
    since_s: float
    actor: str
    endpoint: str
    errors: int
    busy_s: float


class Board:
    """The agent's side: creates the file of one mesh and reads it."""

    def __init__(self, path: Path | None, ranks: int) -> None:
        """`path` is None for a mesh whose processes cannot start.

        Raises:
            OSError: the file system has no room, or the file exists.
        """
        self.path = path
        self.ranks = ranks
        self._map = mmap.mmap(-1, SLOT * ranks) if path is None else _made(path, SLOT * ranks)
        self._counts = memoryview(self._map).cast("Q")

    def read(self, rank: int, now_s: float | None = None) -> Status:
        """The state of that rank now, or at that time of the monotonic clock, just before."""
        raw = b""
        for _ in range(_LOOKS):  # bounded, since the rank may write continuously
            number = self._map[rank * SLOT]
            at = _place(rank, number)
            raw = self._map[at : at + _FORMAT.size]
            if self._map[rank * SLOT] == number:
                break
        state, running, messages, errors, busy, since, actor, endpoint = _FORMAT.unpack(raw)
        now = monotonic_ns() if now_s is None else int(now_s * 1e9)
        return Status(
            state,
            running,
            messages,
            max(0, now - since) / 1e9 if state else 0.0,
            _text(actor),
            _text(endpoint),
            errors,
            max(0, busy + now if state == BUSY else busy) / 1e9,
        )

    def reads(self, rank: int) -> Reads:
        """The counter of bytes read from that rank's output."""
        return Reads(self._counts, rank)

    def clear(self, rank: int) -> None:
        """Empty the slot for the next process of that rank."""
        self._map[rank * SLOT : (rank + 1) * SLOT] = bytes(SLOT)

    def close(self) -> None:
        """Unmap and remove the file."""
        self._counts.release()
        self._map.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Reads:
    """Counts the output that the agent has read of one rank. `counts` maps all slots."""

    def __init__(self, counts: memoryview, rank: int) -> None:
        self._counts = counts
        self._at = (rank + 1) * SLOT // 8 - 1
        self._nbytes = 0
        self._times = 0  # begun or ended

    def begin(self) -> None:
        """A read begins."""
        self._show()

    def end(self, nbytes: int) -> None:
        """The read has ended with that many bytes."""
        self._nbytes += nbytes
        self._show()

    def _show(self) -> None:
        self._times += 1
        self._counts[self._at] = self._nbytes << 8 | self._times & 0xFF


class Slot:
    """A proc's side: writes the state of this rank. Any thread."""

    def __init__(self, path: str | None, rank: int) -> None:
        self._at = rank * SLOT
        self._places = (_place(rank, 0), _place(rank, 1))
        self._writes = 0
        self._running: list[Running] = []
        self._messages = 0
        self._errors = 0
        self._busy = 0
        self._lock = threading.Lock()
        self._map: mmap.mmap | None = None
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)

    def running(self) -> list[Running]:
        """The endpoints that run now, in the order in which they began."""
        return list(self._running)

    def forked(self) -> None:
        """This process is a fork of the proc and writes no more. Takes no lock: it may be held."""
        self._lock = threading.Lock()
        self._map = None

    def reads(self) -> tuple[mmap.mmap, int] | None:
        """Where the agent counts the output that it has read, if there is a board."""
        return None if self._map is None else (self._map, self._at + SLOT - 8)

    def idle(self) -> None:
        """The proc is ready for work."""
        with self._lock:
            self._write(IDLE, monotonic_ns(), b"", b"")

    def begin(self, actor: bytes, endpoint: bytes, messages: int = 1) -> Running:
        """An endpoint begins, with that many messages; pass the result to `end`."""
        now = monotonic_ns()
        running = (now, actor, endpoint)
        under_way = self._running
        with self._lock:
            self._messages += messages
            if not under_way:
                self._busy -= now
            under_way.append(running)
            self._write(BUSY, now, actor, endpoint)
        return running

    def prepare(self, what: bytes) -> Running:
        """Work begins that is no message to an actor."""
        return self.begin(b"", what, 0)

    def end(self, running: Running) -> int:
        """The endpoint has ended; returns the nanoseconds that it ran."""
        under_way = self._running
        with self._lock:
            now = monotonic_ns()
            under_way.remove(running)
            if under_way:
                self._write(BUSY, *under_way[-1])
            else:
                self._busy += now
                self._write(IDLE, now, b"", b"")
        return now - running[0]

    def under_way(self) -> list[Running]:
        """The running endpoints, in the order in which they began."""
        return list(self._running)

    def failed(self) -> None:
        """The endpoint that ended last has failed."""
        with self._lock:
            self._errors += 1
            self._show(monotonic_ns())

    def leave(self) -> None:
        """The proc has ended in order."""
        with self._lock:
            self._write(LEFT, monotonic_ns(), b"", b"")

    def _show(self, now: int) -> None:
        if self._running:
            self._write(BUSY, *self._running[-1])
        else:
            self._write(IDLE, now, b"", b"")

    def _write(self, state: int, since: int, actor: bytes, endpoint: bytes) -> None:
        shown = self._map
        if shown is not None:
            number = self._writes = (self._writes + 1) & 0xFF
            _FORMAT.pack_into(
                shown, self._places[number & 1], state, len(self._running), self._messages,
                self._errors, self._busy, since, actor, endpoint,
            )  # fmt: skip
            shown[self._at] = number


def _made(path: Path, size: int) -> mmap.mmap:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        _reserve(fd, size)
        return mmap.mmap(fd, size)
    except BaseException:  # a stale file would prevent the next board
        path.unlink()
        raise
    finally:
        os.close(fd)


def _reserve(fd: int, size: int) -> None:
    """Allocate the file's blocks where the system can: a write into a hole may raise SIGBUS."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise


def _place(rank: int, number: int) -> int:
    return rank * SLOT + 8 + 120 * (number & 1)


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
