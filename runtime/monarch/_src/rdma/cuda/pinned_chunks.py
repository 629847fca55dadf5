"""Pinned memory of the host that bytes pass through on their way from or to a GPU.

A chunk has two halves, each with a stream of its own: while one is filled or emptied by the GPU,
a transport has the other.

Runs in: whichever threads move bytes. Owns: the chunks.
Invariants: a chunk has one user at a time; it is put back when nothing is on its way from or to it.
Nobody waits for a chunk, since who has one may himself wait for a peer: more are made, and of those
that are put back some are kept.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._src.rdma.cuda.driver import GpuError, logged
from monarch._src.rdma.memory import Memory

if TYPE_CHECKING:
    from monarch._src.rdma.cuda.gpu import Gpu, Stream

log = logging.getLogger("monarch.data")
HALF_BYTES = 1 << 21
MOST_IDLE = 8


class Half(msgspec.Struct, eq=False):
    """`memory`: as a transport takes it; an RDMA card registers it once."""

    address: int
    size: int
    stream: Stream
    memory: Memory


class _Chunk(msgspec.Struct, eq=False):
    ordinal: int
    address: int
    halves: tuple[Half, ...]


class Chunks:
    """See the module's text."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._idle: dict[int, list[_Chunk]] = {}
        self.made = 0  # that exist now

    @contextmanager
    def taken(self, ordinal: int) -> Generator[tuple[Half, ...]]:
        """Two halves, for copies of that device. Raises GpuError.

        When the block ends all their copies have ended; in error too.
        """
        chunk = self._take(ordinal)
        try:
            yield chunk.halves
        except BaseException:
            try:
                self._wait(chunk)
            except GpuError:  # what is raised already came first
                self._abandon(chunk)
            else:
                self._put_back(chunk)
            raise
        try:
            self._wait(chunk)
        except GpuError:
            self._abandon(chunk)
            raise
        self._put_back(chunk)

    def _take(self, ordinal: int) -> _Chunk:
        with self._lock:
            idle = self._idle.get(ordinal)
            if idle:
                return idle.pop()
        gpu = self._gpu
        address = gpu.allocate_pinned(ordinal, 2 * HALF_BYTES)
        streams: list[Stream] = []
        try:
            streams += [gpu.taken(ordinal) for _ in range(2)]
        except BaseException:
            for stream in streams:
                gpu.put_back(stream)
            gpu.free_pinned(ordinal, address)
            raise
        with self._lock:
            self.made += 1
        # What a card that has registered it hears the end of: an object of ours.
        whole: Any = (ctypes.c_ubyte * (2 * HALF_BYTES)).from_address(address)
        halves = tuple(
            Half(at, HALF_BYTES, stream, Memory(at, HALF_BYTES, False, whole, whole))
            for at, stream in zip((address, address + HALF_BYTES), streams, strict=True)
        )
        return _Chunk(ordinal, address, halves)

    def _wait(self, chunk: _Chunk) -> None:
        for half in chunk.halves:
            half.stream.wait()

    def _put_back(self, chunk: _Chunk) -> None:
        with self._lock:
            idle = self._idle.setdefault(chunk.ordinal, [])
            if len(idle) < MOST_IDLE:
                idle.append(chunk)
                return
        self._free(chunk)

    def _free(self, chunk: _Chunk) -> None:
        for half in chunk.halves:
            self._gpu.put_back(half.stream)
        address = chunk.address
        chunk.halves = ()
        with self._lock:
            self.made -= 1
        with logged("pinned memory"):
            self._gpu.free_pinned(chunk.ordinal, address)

    def _abandon(self, chunk: _Chunk) -> None:
        """Its device has failed, and with that all that is in its context: nothing can be freed."""
        with self._lock:
            self.made -= 1
        log.warning("GPU %d has failed; memory of the host stays pinned", chunk.ordinal)

    def give_back(self) -> None:
        """Free those that nobody uses."""
        with self._lock:
            chunks = [chunk for idle in self._idle.values() for chunk in idle]
            self._idle.clear()
        for chunk in chunks:
            self._free(chunk)
