"""The functions of the CUDA driver that the data plane calls, and their errors.

Runs in: any process that uses memory of a GPU; calls release the GIL. Owns: the library, which
stays loaded.
Invariants: only this module knows where the functions come from. Each has the argument types of
`cuda.h`, so tests can replace the library by a table of other functions with these types, without
any effect on the code above.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Generator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

log = logging.getLogger("monarch.rdma")
LIBRARY = "libcuda.so.1"
IPC_HANDLE_BYTES, UUID_BYTES = 64, 16
LAZY_PEER_ACCESS = 1  # the only flag of cuIpcOpenMemHandle
NON_BLOCKING = 1  # a stream that does not wait for the legacy one
PORTABLE = 1  # pinned for all contexts
DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD, a different stream in each thread
NOT_READY = 600  # CUDA_ERROR_NOT_READY, which is not a failure
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", ctypes.c_ubyte * IPC_HANDLE_BYTES),)


class Uuid(ctypes.Structure):
    """CUuuid."""

    _fields_ = (("bytes", ctypes.c_ubyte * UUID_BYTES),)


_ADDRESS = c_uint64  # CUdeviceptr
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid": (POINTER(Uuid), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamQuery": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuMemcpyAsync": (_ADDRESS, _ADDRESS, c_size_t, c_void_p),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(_ADDRESS), c_size_t),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemGetAddressRange_v2": (POINTER(_ADDRESS), POINTER(c_size_t), _ADDRESS),
    "cuPointerGetAttribute": (c_void_p, c_int, _ADDRESS),
    "cuIpcGetMemHandle": (POINTER(IpcHandle), _ADDRESS),
    "cuIpcOpenMemHandle_v2": (POINTER(_ADDRESS), IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (_ADDRESS,),
}
# The name of this function since CUDA 11.4; the newer one distinguishes the parts of a divided GPU
# (MIG).
_NEWER = {"cuDeviceGetUuid": "cuDeviceGetUuid_v2"}


class GpuError(Exception):
    """A GPU or its driver failed; the text has the reason."""


class NoGpuError(GpuError):
    """This process has no driver, or no device."""


class CudaError(GpuError):
    """A function of the driver has failed. `number`: its CUresult; `name`: that of the error."""

    def __init__(self, function: str, number: int, name: str, text: str) -> None:
        super().__init__(f"{function} failed: {name} ({number}), {text}")
        self.function, self.number, self.name = function, number, name


@contextmanager
def logged(what: str) -> Generator[None]:
    """Log an error of freeing a resource, so that the caller can go on to free others."""
    try:
        yield
    except GpuError as error:
        log.warning("%s of a GPU could not be given back: %s", what, error)


def functions_of(library: Any) -> Any:
    """The functions of that library, by name, with their types.

    Raises:
        NoGpuError: it is too old and lacks one of them.
    """
    found = SimpleNamespace()
    for name, types in PROTOTYPES.items():
        function = getattr(library, _NEWER.get(name, name), None) or getattr(library, name, None)
        if function is None:
            raise NoGpuError(f"the CUDA driver of this machine has no {name}: it is too old")
        function.argtypes = types
        function.restype = c_int
        setattr(found, name, function)
    return found


def load() -> Any:
    """The functions of this machine's driver. Initializes nothing. Raises NoGpuError."""
    try:
        return functions_of(ctypes.CDLL(LIBRARY))
    except OSError as error:
        raise NoGpuError(f"no CUDA driver here: {error}") from error


class Driver:
    """Calls the functions of the driver, and checks their results."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises CudaError."""
        number = getattr(self._functions, name)(*arguments)
        if number:
            raise CudaError(name, number, *self._words(number))

    def _words(self, number: int) -> tuple[str, str]:
        """The name and the text of a CUresult; a driver may not know it."""
        found: list[str] = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            said = c_char_p()
            if getattr(self._functions, name)(number, ctypes.byref(said)) or said.value is None:
                found.append("an error that this driver cannot describe")
            else:
                found.append(said.value.decode(errors="replace"))
        return found[0], found[1]
