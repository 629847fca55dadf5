"""Arrays on a GPU, real or not, with nothing but the driver: bytes that have the array interface.

Runs in: any process of a test.
"""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_void_p
from typing import Any

from monarch._src.rdma.cuda.driver import GpuError
from monarch._src.rdma.cuda.gpu import Gpu, gpu
from monarch._src.wire.raw_memory import address_of


class _Block:
    """An allocation, with a share in the context of its device, as torch has one."""

    def __init__(self, size: int, ordinal: int) -> None:
        self.gpu = gpu()
        self.gpu.driver.call("cuDevicePrimaryCtxRetain", byref(c_void_p()), ordinal)
        try:
            self.address = self.gpu.allocate(ordinal, size)
        except GpuError:
            self.gpu.driver.call("cuDevicePrimaryCtxRelease_v2", ordinal)
            raise
        weakref.finalize(self, _free, self.gpu, ordinal, self.address).atexit = False


def _free(of: Gpu, ordinal: int, address: int) -> None:
    of.free(ordinal, address)
    of.driver.call("cuDevicePrimaryCtxRelease_v2", ordinal)


class DeviceArray:
    """Bytes of a GPU; a slice of it is a view. `stream`: what the interface tells."""

    def __init__(
        self, size: int, ordinal: int = 0, *, readonly: bool = False, stream: int | None = None
    ) -> None:
        self._block = _Block(size, ordinal)
        self.ordinal = ordinal
        self.address, self.size = self._block.address, size
        self.readonly, self.stream = readonly, stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,), "typestr": "|u1", "data": (self.address, self.readonly),
            "version": 3, "strides": None, "stream": self.stream,
        }  # fmt: skip

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice) -> DeviceArray:
        start, stop, step = key.indices(self.size)
        if step != 1:
            raise ValueError("every byte, or none")
        view = DeviceArray.__new__(DeviceArray)
        view._block, view.ordinal = self._block, self.ordinal
        view.address, view.size = self.address + start, max(0, stop - start)
        view.readonly, view.stream = self.readonly, self.stream
        return view

    def __setitem__(self, at: int, value: int) -> None:
        self[at : at + 1].put(bytearray([value]))

    def put(self, data: Any) -> None:
        """Fill it from memory of the host."""
        view = memoryview(data).cast("B")
        if len(view) != self.size:
            raise ValueError(f"{len(view)} bytes for {self.size}")
        self._block.gpu.copy(self.address, address_of(view), self.size, self.ordinal)

    def tobytes(self) -> bytes:
        """What is there now."""
        room = (ctypes.c_ubyte * self.size)()
        self._block.gpu.copy(ctypes.addressof(room), self.address, self.size, self.ordinal)
        return bytes(room)
