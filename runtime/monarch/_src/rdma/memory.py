"""Memory of this process that transfers use: its address, what keeps it there. No I/O.

Nothing here imports torch or numpy: a program that has a tensor has loaded torch.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec


class Device(msgspec.Struct, frozen=True):
    """A CUDA device: its number in this process, and what it is known by in any."""

    ordinal: int
    uuid: bytes


class Queued(msgspec.Struct, frozen=True):
    """What the program has put on a stream of its own, and may not be done yet."""

    ordinal: int
    stream: int


class Memory(msgspec.Struct, frozen=True, eq=False):
    """Bytes of this process, and what keeps them where they are.

    keep: while it is referred to, the memory stays.
    root: what owns the memory, where it can tell of its end by a weak reference: a tensor's
        storage, the array that numpy allocated. None: only `keep` says, by holding the export, and
        the memory lives as long as that.
    device: the GPU that has it; None: the host.
    queued: of a GPU's memory: asked in the thread that wants a transfer, what is to be done before.
    """

    address: int
    size: int
    readonly: bool
    keep: Any
    root: Any = None
    device: Device | None = None
    queued: Callable[[], Queued | None] | None = None

    def overlaps(self, other: Memory) -> bool:
        """Whether any byte belongs to both."""
        return (
            self.address < other.address + other.size and other.address < self.address + self.size
        )


def span_of_root(root: Any, address: int, size: int) -> tuple[int, int]:
    """Address and size of all that a root owns; of the given bytes alone if it does not say."""
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
    """From here on a tensor's storage cannot be resized, which would move what others write to.

    Its new memory would be somewhere else, and the old free for other uses, without a word to us.
    torch has no call for it, but does it for storages that it shows to numpy. Of storages on a GPU
    numpy is shown nothing: who resizes one that he has registered has handles to what lies there
    next (`docs/reference/bulk_data.md`).
    """
    storage = memory.root
    if memory.device is not None:
        return
    if not type(storage).__module__.startswith("torch"):
        return  # numpy refuses to resize what is referred to weakly
    if storage.resizable():
        torch = sys.modules["torch"]
        try:
            torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        except RuntimeError:  # numpy is not installed
            pass


def is_in_place(memory: Memory) -> bool:
    """Whether it is still where it was: a tensor's storage that is resized moves, without a word.

    All else that has memory is kept from that by what `keep` holds.
    """
    root = memory.root
    if type(root).__name__ != "UntypedStorage":  # it is asked for each transfer
        return True
    start = root.data_ptr()
    return start <= memory.address and memory.address + memory.size <= start + root.nbytes()


def is_array(value: Any) -> bool:
    """Whether that is an array of numpy, which is not imported for this."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def view_of(address: int, size: int) -> memoryview:
    """Bytes at an address, to be read and written while somebody else keeps them there."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
