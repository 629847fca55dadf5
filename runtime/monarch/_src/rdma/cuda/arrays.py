"""The memory of tensors on a GPU, and of arrays that have the CUDA array interface.

Runs in: any process, the thread that asks. Owns nothing.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

from monarch._src.rdma.cuda.driver import GpuError
from monarch._src.rdma.cuda.gpu import gpu
from monarch._src.rdma.memory import Device, Memory, Queued

_TYPE = re.compile(r"[<>|=][biufcV](\d+)")


def memory_of_tensor(tensor: Any, size: int, what: str) -> Memory:
    """Of a tensor of one dim, in a row. Raises TypeError if the driver has no such device."""
    address = tensor.data_ptr()
    where, torch = tensor.device, sys.modules["torch"]
    device = _device(where.index, what)

    def queued() -> Queued:
        return Queued(device.ordinal, torch.cuda.current_stream(where).cuda_stream)

    return Memory(address, size, False, tensor, tensor.untyped_storage(), device, queued)


def memory_of_array(array: Any, interface: Mapping[str, Any], what: str) -> Memory:
    """Of what CuPy, Numba and others call an array: version 3 of the interface, and older ones.

    Raises:
        TypeError: it has no bytes in a row, or the driver knows of no such memory.
        ValueError: it has several dims, is not contiguous, or is empty.
    """
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    found = _TYPE.fullmatch(interface["typestr"])
    if found is None or interface.get("mask") is not None:
        kind = "with a mask" if found is not None else f"of {interface['typestr']}"
        raise TypeError(f"{what}: an array {kind} has no bytes that another process could use")
    itemsize = int(found[1])
    if len(shape) != 1 or (strides is not None and shape[0] and tuple(strides) != (itemsize,)):
        raise ValueError(
            f"{what} takes 1-D contiguous arrays; this one has shape {shape} and strides "
            f"{strides}: give a contiguous one, flattened (`.ravel()`)"
        )
    size = shape[0] * itemsize
    if not size:
        raise ValueError(f"{what}: size 0; there is nothing to move")
    address, readonly = interface["data"]
    device = _device_of(address, what)
    root = array if _tells_of_its_end(array) else None
    return Memory(address, size, bool(readonly), array, root, device, _queued_of(array, device))


def _device(ordinal: int, what: str) -> Device:
    try:
        return gpu().devices[ordinal]
    except (GpuError, IndexError) as error:
        raise TypeError(f"{what}: device {ordinal} of CUDA cannot be used: {error}") from error


def _device_of(address: int, what: str) -> Device:
    try:
        return gpu().device_of(address)
    except GpuError as error:
        raise TypeError(f"{what}: this is no memory that can be moved: {error}") from error


def _queued_of(array: Any, device: Device) -> Callable[[], Queued | None]:
    def queued() -> Queued | None:
        # Asked anew each time: an array tells the stream that it is used on now.
        stream = array.__cuda_array_interface__.get("stream")
        if stream is None:  # whoever made it has seen to that, or nothing can be said
            return None
        return Queued(device.ordinal, int(stream))

    return queued


def _tells_of_its_end(array: Any) -> bool:
    """Whether it can be referred to weakly, and that is told before its memory is freed.

    A finalizer in Python runs before weak references are told.
    """
    if hasattr(cast(object, type(array)), "__del__"):
        return False
    try:
        weakref.ref(array)
    except TypeError:
        return False
    return True
