"""What memory can be registered, or moved to and from, and how it is held. No I/O.

Nothing here imports torch or numpy: who has a tensor has torch.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from monarch._src.wire.raw_memory import address_of

Registrable: TypeAlias = "memoryview | bytearray | Any"  # torch tensors and numpy arrays too

_NAMED = "a 1-D contiguous tensor, memoryview, bytearray, numpy array or array of a CUDA GPU"


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


def memory_of(value: Registrable, what: str = "RDMABuffer") -> Memory:
    """The memory of a tensor, an array or another buffer; nothing is copied.

    Raises:
        TypeError: it has no memory that could be shared as bytes.
        ValueError: it has several dims, is not contiguous, or is empty.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(value, what)
    on_gpu = getattr(value, "__cuda_array_interface__", None)
    if on_gpu is not None:
        from monarch._src.rdma.cuda.arrays import memory_of_array

        return memory_of_array(value, on_gpu, what)
    try:
        view = memoryview(value)
    except TypeError:
        kind = type(cast(object, value)).__qualname__
        raise TypeError(f"{what} takes {_NAMED}, not {kind}") from None
    except ValueError as error:  # numpy has no word for such elements: dates, for one
        raise TypeError(f"{what}: {error}; give its bytes, `.view('u1')`") from error
    if view.ndim != 1 or not view.c_contiguous:
        raise ValueError(
            f"{what} takes {_NAMED}; this one has shape {view.shape} and strides {view.strides}: "
            "give a contiguous one, flattened (`.ravel()`, `.cast('B')`)"
        )
    if _has_objects(view):
        raise TypeError(
            f"{what}: what holds Python objects has no bytes that another process could use"
        )
    if not view.nbytes:
        raise ValueError(f"{what}: size 0; there is nothing to move")
    return Memory(address_of(view), view.nbytes, view.readonly, view, _array_root(view))


def _of_tensor(tensor: Any, what: str) -> Memory:
    torch = sys.modules["torch"]
    place = tensor.device.type
    rocm = place == "cuda" and torch.version.hip is not None
    if place not in ("cpu", "cuda") or rocm:
        why = " of ROCm, whose driver is another one" if rocm else ""
        raise TypeError(
            f"{what}: a tensor on {tensor.device}{why}; this version moves memory of the CPU and "
            "of CUDA GPUs: copy it there first (`.cpu()`, into pinned memory where it is done "
            "often)"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"{what}: a tensor of layout {tensor.layout} has no bytes in a row")
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"{what} takes {_NAMED}; this tensor has shape {tuple(tensor.shape)} and strides "
            f"{tuple(tensor.stride())}: give `.flatten()` of a contiguous one"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{what}: what lies in memory is not what this tensor shows, but its conjugate or "
            "negative: give `.resolve_conj().resolve_neg()`, which is a copy"
        )
    size = tensor.numel() * tensor.element_size()
    if not size:
        raise ValueError(f"{what}: size 0; there is nothing to move")
    if place == "cuda":
        from monarch._src.rdma.cuda.arrays import memory_of_tensor

        return memory_of_tensor(tensor, size, what)
    return Memory(tensor.data_ptr(), size, False, tensor, tensor.untyped_storage())


def span_of_root(root: Any, address: int, size: int) -> tuple[int, int]:
    """Address and size of all that a root owns; of the given bytes alone if it does not say."""
    start, whole = 0, 0
    if isinstance(root, ctypes.Array):
        array = cast("ctypes.Array[Any]", root)
        start, whole = ctypes.addressof(array), ctypes.sizeof(array)
    elif _is_array(root):
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


def _has_objects(view: memoryview) -> bool:
    """Whether elements are references; the format of a structured array has names in it."""
    if _is_array(view.obj):
        return cast(Any, view.obj).dtype.hasobject
    return "O" in view.format


def _array_root(view: memoryview) -> Any:
    """The array that allocated this memory; None if it is not numpy's, or somebody else's."""
    array: Any = view.obj
    found: Any = None
    while _is_array(array):
        found = array
        array = array.base
    return found if found is not None and array is None else None


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def view_of(address: int, size: int) -> memoryview:
    """Bytes at an address, to be read and written while somebody else keeps them there."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
