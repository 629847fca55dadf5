"""The memory of objects that a program registers: tensors, arrays, buffers of the host or a GPU.

Nothing here imports torch or numpy: a program that has a tensor has loaded torch. The code for
arrays on a GPU is loaded with the first of them.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias, cast

from monarch._src.rdma.memory import Memory, is_array
from monarch._src.wire.raw_memory import address_of

Registrable: TypeAlias = "memoryview | bytearray | Any"  # torch tensors and numpy arrays too

_NAMED = "a 1-D contiguous tensor, memoryview, bytearray, numpy array or array of a CUDA GPU"


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
        from monarch._src.rdma.cuda.device_arrays import memory_of_array

        return memory_of_array(value, on_gpu, what)
    try:
        view = memoryview(value)
    except TypeError:
        kind = type(cast(object, value)).__qualname__
        raise TypeError(f"{what} takes {_NAMED}, not {kind}") from None
    except ValueError as error:  # the buffer protocol lacks some element types of numpy, as dates
        raise TypeError(f"{what}: {error}; give its bytes, `.view('u1')`") from error
    if view.ndim != 1 or not view.c_contiguous:
        raise ValueError(
            f"{what} takes {_NAMED}; this one has shape {view.shape} and strides {view.strides}: "
            "give a contiguous one, flattened (`.ravel()`, `.cast('B')`)"
        )
    if _has_objects(view):
        raise TypeError(
            f"{what}: an array of Python objects has no bytes that another process could use"
        )
    if not view.nbytes:
        raise ValueError(f"{what}: size 0; there is nothing to move")
    return Memory(address_of(view), view.nbytes, view.readonly, view, _array_root(view))


def _of_tensor(tensor: Any, what: str) -> Memory:
    torch = sys.modules["torch"]
    place = tensor.device.type
    rocm = place == "cuda" and torch.version.hip is not None
    if place not in ("cpu", "cuda") or rocm:
        why = " of ROCm, which has another driver" if rocm else ""
        raise TypeError(
            f"{what}: a tensor on {tensor.device}{why}; this version moves memory of the CPU and "
            "of CUDA GPUs: copy it there first (`.cpu()`, into pinned memory if that happens "
            "often)"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"{what}: a tensor of layout {tensor.layout} has no contiguous bytes")
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"{what} takes {_NAMED}; this tensor has shape {tuple(tensor.shape)} and strides "
            f"{tuple(tensor.stride())}: give `.flatten()` of a contiguous one"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{what}: this tensor is a lazy conjugate or negative view, its memory has other "
            "values: give `.resolve_conj().resolve_neg()`, which is a copy"
        )
    size = tensor.numel() * tensor.element_size()
    if not size:
        raise ValueError(f"{what}: size 0; there is nothing to move")
    if place == "cuda":
        from monarch._src.rdma.cuda.device_arrays import memory_of_tensor

        return memory_of_tensor(tensor, size, what)
    return Memory(tensor.data_ptr(), size, False, tensor, tensor.untyped_storage())


def _has_objects(view: memoryview) -> bool:
    """Whether its elements are references. The format does not decide: it contains names."""
    if is_array(view.obj):
        return cast(Any, view.obj).dtype.hasobject
    return "O" in view.format


def _array_root(view: memoryview) -> Any:
    """The array that allocated this memory; None if numpy did not allocate it."""
    array: Any = view.obj
    found: Any = None
    while is_array(array):
        found = array
        array = array.base
    return found if found is not None and array is None else None
