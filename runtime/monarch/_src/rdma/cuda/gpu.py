"""The GPUs of this process: contexts, streams, copies, openings of what other processes have.

Runs in: any process that meets memory of a GPU, on whichever threads move bytes.
Owns: a share in the primary context of each device that was used, which is the one that torch,
CuPy and the CUDA runtime use; streams of its own, which wait for nobody else's; pinned chunks.
Invariants: no context of ours is current once a call has returned; what was put on a stream of ours
is done, or has failed, when its block ends. A fork has none of it and begins anew.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import msgspec

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.rdma.cuda import driver as cuda
from monarch._src.rdma.cuda.driver import CudaError, Driver, GpuError, NoGpuError, logged
from monarch._src.rdma.cuda.pinned_chunks import Chunks
from monarch._src.rdma.memory import Device

_making = GuardedLock()
_made: tuple[int, Gpu] | None = None
_functions: Any = None  # of a driver that is not this machine's


def gpu() -> Gpu:
    """The GPUs of this process, found when they are first asked for. Raises NoGpuError."""
    global _made
    made = _made
    if made is None or made[0] != os.getpid():
        with _making:
            made = _made
            if made is None or made[0] != os.getpid():
                made = _made = os.getpid(), Gpu(Driver(_functions or cuda.load()))
    return made[1]


def gpu_if_used() -> Gpu | None:
    """The same, if anybody has asked for them yet."""
    made = _made
    return None if made is None or made[0] != os.getpid() else made[1]


def why_no_gpu() -> str:
    """Why this process can use no GPU; nothing if it can, which is tried."""
    try:
        gpu()
    except GpuError as error:
        return str(error)
    return ""


def use_functions(functions: Any) -> None:
    """For tests: from here on a driver with these functions is this process's; None: its own."""
    global _made, _functions
    with _making:
        _made, _functions = None, functions


class Stream(msgspec.Struct, frozen=True, eq=False):
    """A queue of copies of one device, of which the GPU does one after the other."""

    gpu: Gpu
    ordinal: int
    number: int

    def copy(self, to: int, source: int, size: int) -> None:
        """Begin a copy, in any direction between this process's memory and that of GPUs."""
        with self.gpu.current(self.ordinal):
            self.gpu.driver.call("cuMemcpyAsync", to, source, size, self.number)

    def wait(self) -> None:
        """Until all that was begun is done. Raises CudaError if some of it failed."""
        self.gpu.synchronize(self.ordinal, self.number)


class Gpu:
    """See the module's text."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        count = c_int()
        try:
            driver.call("cuInit", 0)
            driver.call("cuDeviceGetCount", byref(count))
        except CudaError as error:
            raise NoGpuError(str(error)) from error
        if not count.value:
            raise NoGpuError("the CUDA driver knows no device that this process may use")
        self._numbers = [self._device(ordinal) for ordinal in range(count.value)]
        self.devices = [
            Device(ordinal, self._uuid(number)) for ordinal, number in enumerate(self._numbers)
        ]
        self._lock = GuardedLock()
        self._contexts: dict[int, int] = {}
        self._streams: dict[int, list[Stream]] = {}
        self.chunks = Chunks(self)

    def _device(self, ordinal: int) -> int:
        number = c_int()
        self.driver.call("cuDeviceGet", byref(number), ordinal)
        return number.value

    def _uuid(self, number: int) -> bytes:
        found = cuda.Uuid()
        self.driver.call("cuDeviceGetUuid", byref(found), number)
        return bytes(found.bytes)

    def ordinal_of(self, uuid: bytes) -> int | None:
        """The number that a device has here; None if this process may not use it."""
        return next((device.ordinal for device in self.devices if device.uuid == uuid), None)

    # --- contexts and streams ---------------------------------------------------------------------

    @contextmanager
    def current(self, ordinal: int) -> Generator[None]:
        """That device's primary context is the current one of this thread meanwhile.

        Another thread of the program may be capturing a graph, which forbids to all threads what
        could end up in it unless they say that it will not.
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
        """A stream for one thread; what it was given is done when the block ends, also in error."""
        stream = self.taken(ordinal)
        try:
            yield stream
        except BaseException:
            try:
                stream.wait()
            except GpuError:
                pass  # what is raised already came first
            else:
                self.put_back(stream)
            raise
        stream.wait()
        self.put_back(stream)

    def taken(self, ordinal: int) -> Stream:
        """A stream that nobody else uses until it is put back."""
        with self._lock:
            idle = self._streams.get(ordinal)
            if idle:
                return idle.pop()
        made = c_void_p()
        with self.current(ordinal):
            self.driver.call("cuStreamCreate", byref(made), cuda.NON_BLOCKING)
        return Stream(self, ordinal, made.value or 0)

    def put_back(self, stream: Stream) -> None:
        """Nobody uses it any more, and nothing is on it."""
        with self._lock:
            self._streams.setdefault(stream.ordinal, []).append(stream)

    def is_idle(self, ordinal: int, stream: int) -> bool:
        """Whether all that was put on that stream, of anybody, is done. Raises CudaError."""
        try:
            with self.current(ordinal):
                self.driver.call("cuStreamQuery", stream)
        except CudaError as error:
            if error.number != cuda.NOT_READY:
                raise
            return False
        return True

    def synchronize(self, ordinal: int, stream: int) -> None:
        """Until all that was put on that stream, of anybody, is done. Raises CudaError."""
        with self.current(ordinal):
            self.driver.call("cuStreamSynchronize", stream)

    def copy(self, to: int, source: int, size: int, ordinal: int) -> None:
        """Copy between memory of this process, its GPUs' included; done when it returns."""
        with self.stream(ordinal) as stream:
            stream.copy(to, source, size)

    # --- memory -----------------------------------------------------------------------------------

    def device_of(self, address: int) -> Device:
        """The device whose memory that is. Raises CudaError if it is none's."""
        ordinal = c_int()
        self.driver.call("cuPointerGetAttribute", byref(ordinal), cuda.DEVICE_ORDINAL, address)
        return self.devices[ordinal.value]

    def allocate(self, ordinal: int, size: int) -> int:
        """Memory of that device."""
        found = c_uint64()
        with self.current(ordinal):
            self.driver.call("cuMemAlloc_v2", byref(found), size)
        return found.value

    def free(self, ordinal: int, address: int) -> None:
        """Give such memory back."""
        with self.current(ordinal):
            self.driver.call("cuMemFree_v2", address)

    def allocate_pinned(self, ordinal: int, size: int) -> int:
        """Memory of the host that devices copy to and from by themselves."""
        found = c_void_p()
        with self.current(ordinal):
            self.driver.call("cuMemHostAlloc", byref(found), size, cuda.PORTABLE)
        return found.value or 0

    def free_pinned(self, ordinal: int, address: int) -> None:
        """Give such memory back."""
        with self.current(ordinal):
            self.driver.call("cuMemFreeHost", address)

    def allocation(self, ordinal: int, address: int) -> tuple[int, int]:
        """Where the allocation begins that this is part of, and its size."""
        base, size = c_uint64(), c_size_t()
        with self.current(ordinal):
            self.driver.call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        return base.value, size.value

    # --- memory of other processes ----------------------------------------------------------------

    def export(self, ordinal: int, base: int) -> bytes:
        """What another process of this host opens that allocation by."""
        handle = cuda.IpcHandle()
        with self.current(ordinal):
            self.driver.call("cuIpcGetMemHandle", byref(handle), base)
        return bytes(handle.reserved)

    def open(self, ordinal: int, handle: bytes) -> int:
        """Where another process's allocation is, as that device sees it from here."""
        base = c_uint64()
        told = cuda.IpcHandle((ctypes.c_ubyte * cuda.IPC_HANDLE_BYTES).from_buffer_copy(handle))
        with self.current(ordinal):
            self.driver.call("cuIpcOpenMemHandle_v2", byref(base), told, cuda.LAZY_PEER_ACCESS)
        return base.value

    def close_opened(self, ordinal: int, base: int) -> None:
        """It is not used from here any more."""
        with self.current(ordinal):
            self.driver.call("cuIpcCloseMemHandle", base)

    def give_back(self) -> None:
        """Everything that is held while nothing is moved. What is used later is made anew.

        A device that has failed takes nothing back; what is held of it goes with the process.
        """
        self.chunks.give_back()
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
