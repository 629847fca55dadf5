"""The memory of tensors on a GPU, and of arrays with the CUDA array interface.

Runs in: any process, on the calling thread. Owns nothing.
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
    """The memory of a 1-D contiguous tensor. Raises TypeError if the driver lacks its device."""
    address = tensor.data_ptr()
    where, torch = tensor.device, sys.modules["torch"]
    device = _device(where.index, what)

    def queued() -> Queued:
        return Queued(device.ordinal, torch.cuda.current_stream(where).cuda_stream)

    return Memory(address, size, False, tensor, tensor.untyped_storage(), device, queued)


def memory_of_array(array: Any, interface: Mapping[str, Any], what: str) -> Memory:
    """The memory of an array of CuPy, Numba and others: interface version 3 and older ones.

    Raises:
        TypeError: its elements are not plain bytes, or the driver does not know its memory.
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
        raise TypeError(f"{what}: this memory cannot be moved: {error}") from error


def _queued_of(array: Any, device: Device) -> Callable[[], Queued | None]:
    def queued() -> Queued | None:
        # Read anew each time: the interface names the stream on which the array is used now.
        stream = array.__cuda_array_interface__.get("stream")
        if stream is None:  # the producer needs no wait, or does not say
            return None
        return Queued(device.ordinal, int(stream))

    return queued


def _tells_of_its_end(array: Any) -> bool:
    """Whether a weak reference reports its end before its memory is freed.

    It does not if there is a finalizer in Python, which runs before weak references are cleared.
    """
    if hasattr(cast(object, type(array)), "__del__"):
        return False
    try:
        weakref.ref(array)
    except TypeError:
        return False
    return True
