"""The status board: what every rank of a mesh does now, in one memory-mapped file a host.

Each proc writes its own slot as it begins and ends an endpoint (0.5 us); the agent reads all of
them whenever somebody looks, and the slot of a dead proc still says what it died in. Nothing is
sent and nobody is asked, so a rank that computes, holds the GIL or is stopped shows as what it is.

Where several endpoints overlap, the slot names the one that began last of those that still run.

Slot, 256 bytes, little endian: u8 number of writes, modulo 256; at byte 8 + 120 * (that number
modulo 2) what was written last: u32 state, u32 running endpoints, u64 messages, u64 errors, i64
busy, i64 since (nanoseconds of the system-wide monotonic clock), 32 bytes actor, 48 bytes endpoint
(UTF-8, zero-padded). The next write goes to the other place and then counts itself, so whoever
finds the number unchanged after reading has read a whole one, also if the writer was stopped or
killed in the middle.

The last 8 bytes the agent writes, u64: 256 times the number of bytes that it has read from the
rank's output pipes, and how often, modulo 128, times 2, and 1 more while it reads. From that the
rank sees what it has not counted itself (`monarch._src.logs.output_counters`).

Busy is for how many nanoseconds anything ran, less, while something runs, the time at which that
began: whoever reads adds the time it is, so that nobody has to write in between.
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
# What a file system says that has no such call, where the C library has no way around that (musl).
_CANNOT_RESERVE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
NONE, IDLE, BUSY, LEFT = 0, 1, 2, 3
Running: TypeAlias = "tuple[int, bytes, bytes]"  # since when (ns), actor, endpoint


class Status(msgspec.Struct, frozen=True):
    """One slot as read. `since_s`: for how many seconds it has been so.

    `errors` of the messages failed; anything ran for `busy_s` seconds, until now.
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
    """The agent's side: makes the file of one mesh and reads it."""

    def __init__(self, path: Path | None, ranks: int) -> None:
        """`path`: None for a mesh none of whose processes will be.

        Raises:
            OSError: there is no room for the file, or it is there already.
        """
        self.path = path
        self.ranks = ranks
        self._map = mmap.mmap(-1, SLOT * ranks) if path is None else _made(path, SLOT * ranks)
        self._counts = memoryview(self._map).cast("Q")

    def read(self, rank: int) -> Status:
        """What that rank does now."""
        raw = b""
        for _ in range(_LOOKS):  # a bound, for one that writes on and on
            number = self._map[rank * SLOT]
            at = _place(rank, number)
            raw = self._map[at : at + _FORMAT.size]
            if self._map[rank * SLOT] == number:
                break
        state, running, messages, errors, busy, since, actor, endpoint = _FORMAT.unpack(raw)
        now = monotonic_ns()
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
        """Where to count what is read of that rank's output."""
        return Reads(self._counts, rank)

    def clear(self, rank: int) -> None:
        """The process of that rank is gone, and another one is to have its slot."""
        self._map[rank * SLOT : (rank + 1) * SLOT] = bytes(SLOT)

    def close(self) -> None:
        """Unmap and remove the file."""
        self._counts.release()
        self._map.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Reads:
    """What the agent has read of one rank's output, where the rank sees it. `counts`: all slots."""

    def __init__(self, counts: memoryview, rank: int) -> None:
        self._counts = counts
        self._at = (rank + 1) * SLOT // 8 - 1
        self._nbytes = 0
        self._times = 0  # begun or ended

    def begin(self) -> None:
        """A read begins."""
        self._show()

    def end(self, nbytes: int) -> None:
        """It has ended, and was of so many bytes."""
        self._nbytes += nbytes
        self._show()

    def _show(self) -> None:
        self._times += 1
        self._counts[self._at] = self._nbytes << 8 | self._times & 0xFF


class Slot:
    """A proc's side: writes what this rank does. Any thread."""

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

    def forked(self) -> None:
        """This is a fork of the proc, and shows nothing. Takes no lock, which may be held."""
        self._lock = threading.Lock()
        self._map = None

    def reads(self) -> tuple[mmap.mmap, int] | None:
        """Where the agent counts what it reads of this rank's output, if there is a board."""
        return None if self._map is None else (self._map, self._at + SLOT - 8)

    def idle(self) -> None:
        """The proc is ready for work."""
        with self._lock:
            self._write(IDLE, monotonic_ns(), b"", b"")

    def begin(self, actor: bytes, endpoint: bytes, messages: int = 1) -> Running:
        """An endpoint begins, with so many messages; give what this returns to `end`."""
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
        """Something begins that is no message to an actor."""
        return self.begin(b"", what, 0)

    def end(self, running: Running) -> int:
        """It has ended; how many nanoseconds it ran."""
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

    def failed(self) -> None:
        """What ended last has failed."""
        with self._lock:
            self._errors += 1
            self._show(monotonic_ns())

    def leave(self) -> None:
        """The proc was told to end, and is done."""
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
    except BaseException:  # raised on; a file without a board would be in the way of the next one
        path.unlink()
        raise
    finally:
        os.close(fd)


def _reserve(fd: int, size: int) -> None:
    """Have room for that file, where the system can tell: a rank that finds none gets a SIGBUS."""
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
