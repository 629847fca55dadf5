"""Memory of torch tensors, pickled once and beside the stream. No I/O.

A tensor's own reduction writes its storage into the stream as a file of `torch.save`: several
copies, and one more for each tensor that shares the storage. Here a CPU storage is one buffer,
which travels out of band if it is large, and tensors of one message that share memory share it
there too. One that came out of band cannot be made larger in place (`resize_`).

Nothing here imports torch but to rebuild what somebody has sent: who has a tensor has it.
"""

from __future__ import annotations

import importlib
import pickle
from typing import Any

from monarch._src.wire.apart import SEGMENT_FROM


class Memory:
    """One untyped storage in a pickle; unpickles as a storage over the memory that came."""

    __slots__ = ("_untyped",)

    def __init__(self, untyped: Any) -> None:
        self._untyped = untyped

    def __reduce__(self) -> tuple[Any, ...]:
        import ctypes  # torch has it loaded

        size = self._untyped.nbytes()
        if not size:
            return _rebuild_untyped, (pickle.PickleBuffer(b""),)
        data: Any = (ctypes.c_char * size).from_address(self._untyped.data_ptr())
        data.storage = self._untyped  # for as long as the buffer is in use
        return _rebuild_untyped, (pickle.PickleBuffer(data),)


def reduce_storage(storage: Any, known: dict[int, Memory]) -> tuple[Any, ...] | None:
    """How to pickle a `TypedStorage` or `UntypedStorage`; None if torch has to do it (a device's).

    Args:
        known: those of this message, by the address of what they share.
    """
    untyped = getattr(storage, "_untyped_storage", storage)
    if untyped.device.type != "cpu":
        return None
    memory = known.get(untyped._cdata)
    if memory is None:
        memory = known[untyped._cdata] = Memory(untyped)
    if untyped is storage:
        return _same, (memory,)
    return _rebuild_typed, (type(storage), storage.dtype, memory)


def _rebuild_untyped(buffer: Any) -> Any:
    torch = _torch()
    if not len(buffer):
        return torch.UntypedStorage(0)
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    return (tensor.clone() if len(buffer) < SEGMENT_FROM else tensor).untyped_storage()


def is_rebuild_of_untyped(function: Any) -> bool:
    """Whether torch has this rebuild tensors of its newer types, from storages without a type."""
    return function.__name__ == "_rebuild_tensor_v3" and function.__module__ == "torch._utils"


def rebuild_of_untyped() -> Any:
    """What does that from storages as they come here; see `is_rebuild_of_untyped`.

    Torch's function takes what `torch.load` gives, which has a type all the same.
    """
    return _rebuild_from_untyped


def _rebuild_from_untyped(storage: Any, *facts: Any) -> Any:
    torch = _torch()
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
    return torch._utils._rebuild_tensor_v3(typed, *facts)


def _torch() -> Any:
    return importlib.import_module("torch")


def _rebuild_typed(kind: Any, dtype: Any, untyped: Any) -> Any:
    return kind(wrap_storage=untyped, dtype=dtype, _internal=True)


def _same(value: Any) -> Any:
    return value
