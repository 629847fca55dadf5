"""The status board: what every rank of a mesh does now, in one memory-mapped file a host.

Each proc writes its own slot as it begins and ends an endpoint (0.5 us); the agent reads all of
them whenever somebody looks, and the slot of a dead proc still says what it died in. Nothing is
sent and nobody is asked, so a rank that computes, holds the GIL or is stopped shows as what it is.

Where several endpoints overlap, the slot names the one that began last of those that still run.

Slot, 256 bytes, little endian: u8 number of writes, modulo 256; at byte 8 + 120 * (that number
modulo 2) what was written last: u32 state, u32 running endpoints, u64 messages, f64 since (seconds
of the system-wide monotonic clock), 32 bytes actor, 48 bytes endpoint (UTF-8, zero-padded). The
next write goes to the other place and then counts itself, so whoever finds the number unchanged
after reading has read a whole one, also if the writer was stopped or killed in the middle.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

SLOT = 256
_FORMAT = struct.Struct("<IIQd32s48s")
_LOOKS = 100
NONE, IDLE, BUSY, LEFT = 0, 1, 2, 3
Running: TypeAlias = "tuple[float, bytes, bytes]"  # since when, actor, endpoint


@dataclass(frozen=True)
class Status:
    """One slot as read. `since_s`: for how many seconds it has been so."""

    state: int
    running: int
    messages: int
    since_s: float
    actor: str
    endpoint: str


class Board:
    """The agent's side: makes the file of one mesh and reads it."""

    def __init__(self, path: Path, ranks: int) -> None:
        self.path = path
        self.ranks = ranks
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, SLOT * ranks)
            self._map = mmap.mmap(fd, SLOT * ranks)
        finally:
            os.close(fd)

    def read(self, rank: int) -> Status:
        """What that rank does now."""
        raw = b""
        for _ in range(_LOOKS):  # a bound, for one that writes on and on
            number = self._map[rank * SLOT]
            at = _place(rank, number)
            raw = self._map[at : at + _FORMAT.size]
            if self._map[rank * SLOT] == number:
                break
        state, running, messages, since, actor, endpoint = _FORMAT.unpack(raw)
        return Status(
            state,
            running,
            messages,
            max(0.0, time.monotonic() - since) if state else 0.0,
            _text(actor),
            _text(endpoint),
        )

    def close(self) -> None:
        """Unmap and remove the file."""
        self._map.close()
        self.path.unlink(missing_ok=True)


class Slot:
    """A proc's side: writes what this rank does. Any thread."""

    def __init__(self, path: str | None, rank: int) -> None:
        self._rank = rank
        self._writes = 0
        self._running: list[Running] = []
        self._messages = 0
        self._lock = threading.Lock()
        self._map: mmap.mmap | None = None
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)

    def idle(self) -> None:
        """The proc is ready for work."""
        with self._lock:
            self._write(IDLE, (time.monotonic(), b"", b""))

    def begin(self, actor: bytes, endpoint: bytes) -> Running:
        """An endpoint begins; give what this returns to `end`."""
        running = (time.monotonic(), actor, endpoint)
        with self._lock:
            self._messages += 1
            self._running.append(running)
            self._write(BUSY, running)
        return running

    def prepare(self, what: bytes) -> Running:
        """Something begins that is no message to an actor."""
        running = (time.monotonic(), b"", what)
        with self._lock:
            self._running.append(running)
            self._write(BUSY, running)
        return running

    def end(self, running: Running) -> None:
        """It has ended."""
        with self._lock:
            self._running.remove(running)
            if self._running:
                self._write(BUSY, self._running[-1])
            else:
                self._write(IDLE, (time.monotonic(), b"", b""))

    def leave(self) -> None:
        """The proc was told to end, and is done."""
        with self._lock:
            self._write(LEFT, (time.monotonic(), b"", b""))

    def _write(self, state: int, shown: Running) -> None:
        if self._map is not None:
            number = self._writes = (self._writes + 1) & 0xFF
            at = _place(self._rank, number)
            _FORMAT.pack_into(self._map, at, state, len(self._running), self._messages, *shown)
            self._map[self._rank * SLOT] = number


def _place(rank: int, number: int) -> int:
    return rank * SLOT + 8 + 120 * (number & 1)


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
