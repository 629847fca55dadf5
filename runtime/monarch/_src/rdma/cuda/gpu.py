"""The GPUs of this process: its devices, and the pinned memory that bytes pass through.

Pinned memory of the host is in chunks. A chunk has two halves, each with a stream of its own: while
the GPU fills or empties one half, a transport uses the other. Bytes pass in rounds, and small
pieces share one (`rounds`).

Runs in: any process that uses memory of a GPU, on threads that move bytes. A fork inherits none of
it and begins anew. Owns: the chunks.
Invariants: a chunk has one user at a time, and is put back when no copy uses it any more. No thread
waits for a chunk, because its user may be waiting for a peer: more are made, and some of those that
are put back are kept.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.rdma.cuda import driver as cuda
from monarch._src.rdma.cuda.devices import Devices, Stream
from monarch._src.rdma.cuda.driver import Driver, GpuError, logged
from monarch._src.rdma.memory import Memory

log = logging.getLogger("monarch.rdma")
HALF_BYTES = 1 << 21
MOST_IDLE = 8
_making = GuardedLock()
_made: tuple[int, Gpu] | None = None
_functions: Any = None  # of a driver that replaces this machine's in tests


class Half(msgspec.Struct, eq=False):
    """`memory`: the form for transports; an RDMA card registers it once."""

    address: int
    size: int
    stream: Stream
    memory: Memory


class _Chunk(msgspec.Struct, eq=False):
    ordinal: int
    address: int
    halves: tuple[Half, ...]


class Chunks:
    """The pinned chunks of this process."""

    def __init__(self, gpu: Devices) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._idle: dict[int, list[_Chunk]] = {}
        self.made = 0  # that exist now

    @contextmanager
    def taken(self, ordinal: int) -> Generator[tuple[Half, ...]]:
        """Two halves, for copies on that device. Raises GpuError.

        All their copies are done when the block ends, also after an error.
        """
        chunk = self._take(ordinal)
        try:
            yield chunk.halves
        except BaseException:
            try:
                self._wait(chunk)
            except GpuError:  # the exception that is being raised came first
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
        # An RDMA card that registers the memory watches this object for its end.
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
        """Drop a chunk of a failed device: nothing in its context can be freed any more."""
        with self._lock:
            self.made -= 1
        log.warning("GPU %d has failed; memory of the host stays pinned", chunk.ordinal)

    def give_back(self) -> None:
        """Free all idle chunks."""
        with self._lock:
            chunks = [chunk for idle in self._idle.values() for chunk in idle]
            self._idle.clear()
        for chunk in chunks:
            self._free(chunk)


class Cut(msgspec.Struct, frozen=True):
    """`size` bytes from `offset` in piece `at`, which lie at `place` in the half."""

    at: int
    offset: int
    size: int
    place: int


def rounds(sizes: Sequence[int], room: int) -> Iterator[list[Cut]]:
    """Pieces of those sizes, cut so that each round fits into `room` bytes; in order."""
    cuts: list[Cut] = []
    used = 0
    for at, size in enumerate(sizes):
        offset = 0
        while offset < size:
            part = min(size - offset, room - used)
            cuts.append(Cut(at, offset, part, used))
            offset += part
            used += part
            if used == room:
                yield cuts
                cuts, used = [], 0
    if cuts:
        yield cuts


def gpu() -> Gpu:
    """The GPUs of this process, found on first use. Raises NoGpuError."""
    global _made
    made = _made
    if made is None or made[0] != os.getpid():
        with _making:
            made = _made
            if made is None or made[0] != os.getpid():
                made = _made = os.getpid(), Gpu(Driver(_functions or cuda.load()))
    return made[1]


def gpu_if_used() -> Gpu | None:
    """The same, if they have been used; otherwise None."""
    made = _made
    return None if made is None or made[0] != os.getpid() else made[1]


def why_no_gpu() -> str:
    """Why this process can use no GPU; empty if it can. Initializes the driver."""
    try:
        gpu()
    except GpuError as error:
        return str(error)
    return ""


def use_functions(functions: Any) -> None:
    """For tests: use a driver with these functions from now on; None: the machine's own."""
    global _made, _functions
    with _making:
        _made, _functions = None, functions


class Gpu(Devices):
    """The GPUs of one process, with pinned memory of the host for their copies."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.chunks = Chunks(self)

    def give_back(self) -> None:
        """Release all idle resources. They are made anew when they are needed again.

        A device that has failed releases nothing; the process keeps its resources until it ends.
        """
        self.chunks.give_back()
        super().give_back()
