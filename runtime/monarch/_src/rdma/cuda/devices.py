"""The devices of one process: their contexts, streams, and memory.

Runs in: any process that uses memory of a GPU, on threads that move bytes.
Owns: a share in the primary context of each used device, which torch, CuPy and the CUDA runtime use
too; streams of its own, which do not wait for those of the program.
Invariants: after a call no context of this module is current. Copies on a stream of this module are
done, or have failed, when its block ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import msgspec

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.rdma.cuda import driver as cuda
from monarch._src.rdma.cuda.driver import CudaError, Driver, GpuError, NoGpuError, logged
from monarch._src.rdma.memory import Device


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
