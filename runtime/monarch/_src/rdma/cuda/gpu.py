"""The GPUs of this process: contexts, streams, memory, and the pinned memory for bytes.

Pinned memory of the host is in chunks. A chunk has two halves, each with a stream of its own: while
the GPU fills or empties one half, a transport uses the other. Bytes pass in rounds, and small
pieces share one (`rounds`).

Runs in: any process that uses memory of a GPU, on threads that move bytes. A fork inherits none of
it and begins anew.
Owns: a share in the primary context of each used device, which torch, CuPy and the CUDA runtime use
too; streams of its own, which do not wait for those of the program; the chunks.
Invariants: after a call no context of this module is current. Copies on a stream of this module are
done, or have failed, when its block ends. A chunk has one user at a time, and is put back when no
copy uses it any more. No thread waits for a chunk, because its user may be waiting for a peer: more
are made, and some of those that are put back are kept.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import msgspec

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.rdma.cuda import driver as cuda
from monarch._src.rdma.cuda.driver import CudaError, Driver, GpuError, NoGpuError, logged
from monarch._src.rdma.memory import Device, Memory

log = logging.getLogger("monarch.rdma")
HALF_BYTES = 1 << 21
MOST_IDLE = 8
_making = GuardedLock()
_made: tuple[int, Gpu] | None = None
_functions: Any = None  # of a driver that replaces this machine's in tests


class Stream(msgspec.Struct, frozen=True, eq=False):
    """A queue of copies on one device, which the GPU makes one after the other."""

    gpu: Devices
    ordinal: int
    number: int

    def copy(self, to: int, source: int, size: int) -> None:
        """Begin a copy, in any direction between memory of this process and of GPUs."""
        with self.gpu.current(self.ordinal):
            self.gpu.driver.call("cuMemcpyAsync", to, source, size, self.number)

    def wait(self) -> None:
        """Wait until all copies are done. Raises CudaError if one failed."""
        self.gpu.synchronize(self.ordinal, self.number)


class Devices:
    """The GPUs of one process, without the pinned memory that `Gpu` adds."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        count = c_int()
        try:
            driver.call("cuInit", 0)
            driver.call("cuDeviceGetCount", byref(count))
        except CudaError as error:
            raise NoGpuError(str(error)) from error
        if not count.value:
            raise NoGpuError("the CUDA driver has no device that this process may use")
        self._numbers = [self._device(ordinal) for ordinal in range(count.value)]
        self.devices = [
            Device(ordinal, self._uuid(number)) for ordinal, number in enumerate(self._numbers)
        ]
        self._lock = GuardedLock()
        self._contexts: dict[int, int] = {}
        self._streams: dict[int, list[Stream]] = {}

    def _device(self, ordinal: int) -> int:
        number = c_int()
        self.driver.call("cuDeviceGet", byref(number), ordinal)
        return number.value

    def _uuid(self, number: int) -> bytes:
        found = cuda.Uuid()
        self.driver.call("cuDeviceGetUuid", byref(found), number)
        return bytes(found.bytes)

    def ordinal_of(self, uuid: bytes) -> int | None:
        """The number of a device in this process; None if it may not use the device."""
        return next((device.ordinal for device in self.devices if device.uuid == uuid), None)

    # --- contexts and streams ---------------------------------------------------------------------

    @contextmanager
    def current(self, ordinal: int) -> Generator[None]:
        """Make that device's primary context the current one of this thread meanwhile.

        Another thread of the program may be capturing a graph. That forbids calls in all threads
        that might interfere, unless a thread declares (RELAXED) that its calls do not.
        """
        call = self.driver.call
        call("cuCtxPushCurrent_v2", self._context(ordinal))
        try:
            mode = c_int(cuda.RELAXED)
            call("cuThreadExchangeStreamCaptureMode", byref(mode))
            try:
                yield
            finally:
                call("cuThreadExchangeStreamCaptureMode", byref(mode))
        finally:
            call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def _context(self, ordinal: int) -> int:
        with self._lock:
            known = self._contexts.get(ordinal)
            if known is None:
                found = c_void_p()
                self.driver.call("cuDevicePrimaryCtxRetain", byref(found), self._numbers[ordinal])
                known = self._contexts[ordinal] = found.value or 0
            return known

    @contextmanager
    def stream(self, ordinal: int) -> Generator[Stream]:
        """A stream for one thread. Its copies are done when the block ends, also after an error."""
        stream = self.taken(ordinal)
        try:
            yield stream
        except BaseException:
            try:
                stream.wait()
            except GpuError:
                pass  # the exception that is being raised came first
            else:
                self.put_back(stream)
            raise
        stream.wait()
        self.put_back(stream)

    def taken(self, ordinal: int) -> Stream:
        """A stream for exclusive use until it is put back."""
        with self._lock:
            idle = self._streams.get(ordinal)
            if idle:
                return idle.pop()
        made = c_void_p()
        with self.current(ordinal):
            self.driver.call("cuStreamCreate", byref(made), cuda.NON_BLOCKING)
        return Stream(self, ordinal, made.value or 0)

    def put_back(self, stream: Stream) -> None:
        """Return a stream, on which nothing is queued any more."""
        with self._lock:
            self._streams.setdefault(stream.ordinal, []).append(stream)

    def is_idle(self, ordinal: int, stream: int) -> bool:
        """Whether all work on that stream is done. Raises CudaError."""
        try:
            with self.current(ordinal):
                self.driver.call("cuStreamQuery", stream)
        except CudaError as error:
            if error.number != cuda.NOT_READY:
                raise
            return False
        return True

    def synchronize(self, ordinal: int, stream: int) -> None:
        """Wait until all work on that stream is done. Raises CudaError."""
        with self.current(ordinal):
            self.driver.call("cuStreamSynchronize", stream)

    def copy(self, to: int, source: int, size: int, ordinal: int) -> None:
        """Copy within memory of this process and its GPUs; done on return."""
        with self.stream(ordinal) as stream:
            stream.copy(to, source, size)

    # --- memory -----------------------------------------------------------------------------------

    def device_of(self, address: int) -> Device:
        """The device of that memory. Raises CudaError if it is not on a GPU."""
        ordinal = c_int()
        self.driver.call("cuPointerGetAttribute", byref(ordinal), cuda.DEVICE_ORDINAL, address)
        return self.devices[ordinal.value]

    def allocate(self, ordinal: int, size: int) -> int:
        """Allocate memory of that device."""
        found = c_uint64()
        with self.current(ordinal):
            self.driver.call("cuMemAlloc_v2", byref(found), size)
        return found.value

    def free(self, ordinal: int, address: int) -> None:
        """Free memory of that device."""
        with self.current(ordinal):
            self.driver.call("cuMemFree_v2", address)

    def allocate_pinned(self, ordinal: int, size: int) -> int:
        """Allocate pinned memory of the host, for direct access by devices."""
        found = c_void_p()
        with self.current(ordinal):
            self.driver.call("cuMemHostAlloc", byref(found), size, cuda.PORTABLE)
        return found.value or 0

    def free_pinned(self, ordinal: int, address: int) -> None:
        """Free pinned memory."""
        with self.current(ordinal):
            self.driver.call("cuMemFreeHost", address)

    def allocation(self, ordinal: int, address: int) -> tuple[int, int]:
        """The start and the size of the allocation that contains the address."""
        base, size = c_uint64(), c_size_t()
        with self.current(ordinal):
            self.driver.call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        return base.value, size.value

    # --- memory of other processes ----------------------------------------------------------------

    def export(self, ordinal: int, base: int) -> bytes:
        """The handle by which other processes of this host open that allocation."""
        handle = cuda.IpcHandle()
        with self.current(ordinal):
            self.driver.call("cuIpcGetMemHandle", byref(handle), base)
        return bytes(handle.reserved)

    def open(self, ordinal: int, handle: bytes) -> int:
        """Open another process's allocation on that device; returns its address here."""
        base = c_uint64()
        told = cuda.IpcHandle((ctypes.c_ubyte * cuda.IPC_HANDLE_BYTES).from_buffer_copy(handle))
        with self.current(ordinal):
            self.driver.call("cuIpcOpenMemHandle_v2", byref(base), told, cuda.LAZY_PEER_ACCESS)
        return base.value

    def close_opened(self, ordinal: int, base: int) -> None:
        """Close an opened allocation."""
        with self.current(ordinal):
            self.driver.call("cuIpcCloseMemHandle", base)

    def give_back(self) -> None:
        """Release all idle resources. They are made anew when they are needed again.

        A device that has failed releases nothing; the process keeps its resources until it ends.
        """
        with self._lock:
            streams = [stream for idle in self._streams.values() for stream in idle]
            self._streams.clear()
        for stream in streams:
            with logged("a stream"), self.current(stream.ordinal):
                self.driver.call("cuStreamDestroy_v2", stream.number)
        with self._lock:
            contexts, self._contexts = list(self._contexts), {}
        for ordinal in contexts:
            with logged("a context"):
                self.driver.call("cuDevicePrimaryCtxRelease_v2", self._numbers[ordinal])


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
