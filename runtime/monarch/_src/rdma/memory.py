"""Memory of this process that transfers use: its address, and the object that keeps it. No I/O.

Nothing here imports torch or numpy: a program that has a tensor has loaded torch.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec


class Device(msgspec.Struct, frozen=True):
    """A CUDA device: its number in this process, and its UUID, which is the same everywhere."""

    ordinal: int
    uuid: bytes


class Queued(msgspec.Struct, frozen=True):
    """A stream of the program on which unfinished work may be queued."""

    ordinal: int
    stream: int


class Memory(msgspec.Struct, frozen=True, eq=False):
    """Bytes of this process, and the object that keeps them in place.

    keep: the memory stays while this object is referred to.
    root: the object that owns the memory, if a weak reference to it reports its end: a tensor's
        storage, or the array that numpy allocated. None: the memory lives as long as `keep`, which
        holds the export.
    device: the GPU that has it; None: the host.
    queued: of a GPU's memory: returns the stream to wait for before a transfer. It is called on
        the thread that submits the transfer.
    """

    address: int
    size: int
    readonly: bool
    keep: Any
    root: Any = None
    device: Device | None = None
    queued: Callable[[], Queued | None] | None = None

    def overlaps(self, other: Memory) -> bool:
        """Whether the two have a byte in common."""
        return (
            self.address < other.address + other.size and other.address < self.address + self.size
        )


def span_of_root(root: Any, address: int, size: int) -> tuple[int, int]:
    """Address and size of all the memory that a root owns; the given ones if that is unknown."""
    start, whole = 0, 0
    if isinstance(root, ctypes.Array):
        array = cast("ctypes.Array[Any]", root)
        start, whole = ctypes.addressof(array), ctypes.sizeof(array)
    elif is_array(root):
        start, whole = root.__array_interface__["data"][0], root.nbytes
    elif type(root).__module__.startswith("torch") and hasattr(root, "data_ptr"):
        start, whole = root.data_ptr(), root.nbytes()
    if start <= address and address + size <= start + whole:
        return start, whole
    return address, size


def fix_in_place(memory: Memory) -> None:
    """Forbid a tensor's storage to be resized, which would move memory that peers write to.

    A resized storage gets new memory and frees the old, and nothing reports it. torch has no call
    to forbid that, but it does so for storages that it shows to numpy. It shows no storage on a GPU
    to numpy: a program that resizes one after registering it has handles that lead to whatever is
    allocated there next (`docs/reference/bulk_data.md`).
    """
    storage = memory.root
    if memory.device is not None:
        return
    if not type(storage).__module__.startswith("torch"):
        return  # numpy refuses to resize an array with weak references
    if storage.resizable():
        torch = sys.modules["torch"]
        try:
            torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        except RuntimeError:  # numpy is not installed
            pass


def is_in_place(memory: Memory) -> bool:
    """Whether the memory has not moved. A tensor's storage moves when it is resized.

    All other memory is kept in place by `keep`.
    """
    root = memory.root
    if type(root).__name__ != "UntypedStorage":  # this runs for each transfer, so it is cheap
        return True
    start = root.data_ptr()
    return start <= memory.address and memory.address + memory.size <= start + root.nbytes()


def is_array(value: Any) -> bool:
    """Whether that is a numpy array. Does not import numpy."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def view_of(address: int, size: int) -> memoryview:
    """The bytes at an address. The caller has to keep the memory alive."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
