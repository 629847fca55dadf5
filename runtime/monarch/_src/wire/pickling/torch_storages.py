"""Memory of torch tensors, pickled once and beside the stream. No I/O.

A tensor's own reduction writes its storage into the stream as a file of `torch.save`: several
copies, and one more for each tensor that shares the storage. Here a CPU storage is one buffer,
which travels out of band if it is large, and tensors of one message that share memory share it
there too. One that came out of band cannot be made larger in place (`resize_`).

Of a large storage that the tensors of a message use in part, the span from the first byte used to
the last one travels. Which that is, is known when all of the message is pickled: until then its
place among the buffers is held (`Memory.settle`).

Nothing here imports torch but to rebuild what somebody has sent: who has a tensor has it.
"""

from __future__ import annotations

import importlib
import pickle
from typing import Any

from monarch._src.wire.segment_refs import SEGMENT_FROM

_ALIGNED = 64  # bytes; more than any type of torch needs


class Memory:
    """One untyped storage in a pickle; unpickles as a storage over the memory that came.

    low, high: the bytes of it that are used, if it is known only at the end which those are; it
    then unpickles as a `Span`. None: all are.
    """

    __slots__ = ("_untyped", "high", "low", "pieces")

    def __init__(self, untyped: Any, span: tuple[int, int] | None = None) -> None:
        self._untyped = untyped
        self.low, self.high = span or (None, None)
        self.pieces: tuple[pickle.PickleBuffer, pickle.PickleBuffer] | None = None

    def widen(self, low: int, high: int) -> None:
        """These bytes are used too."""
        assert self.low is not None
        assert self.high is not None
        self.low, self.high = min(self.low, low), max(self.high, high)

    def whole(self) -> None:
        """All bytes are used."""
        if self.low is not None:
            self.widen(0, self._untyped.nbytes())

    def make_pieces(self) -> tuple[pickle.PickleBuffer, pickle.PickleBuffer]:
        """What stands for where its span begins, and for the span."""
        self.pieces = pickle.PickleBuffer(bytes(8)), pickle.PickleBuffer(_bytes_of(self._untyped))
        return self.pieces

    def settle(self) -> tuple[bytes, memoryview]:
        """Where the span begins, and its bytes: what the two `pieces` stand for."""
        assert self.pieces is not None
        assert self.low is not None
        low = self.low // _ALIGNED * _ALIGNED
        return low.to_bytes(8, "big"), self.pieces[1].raw()[low : self.high]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.pieces is not None:
            return Span, self.pieces
        if not self._untyped.nbytes():
            return _rebuild_untyped, (pickle.PickleBuffer(b""),)
        return _rebuild_untyped, (pickle.PickleBuffer(_bytes_of(self._untyped)),)


def _bytes_of(untyped: Any) -> Any:
    import ctypes  # torch has it loaded

    data: Any = (ctypes.c_char * untyped.nbytes()).from_address(untyped.data_ptr())
    data.storage = untyped  # for as long as the buffer is in use
    return data


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
    memory.whole()
    if untyped is storage:
        return _same, (memory,)
    return _rebuild_typed, (type(storage), storage.dtype, memory)


def reduce_tensor(tensor: Any, known: dict[int, Memory]) -> tuple[Any, ...] | None:
    """How to pickle a tensor that uses a part of a large storage; None: as torch does."""
    if tensor.device.type != "cpu" or str(tensor.layout) != "torch.strided" or tensor.is_nested:
        return None
    untyped = tensor.untyped_storage()
    size = untyped.nbytes()
    memory = known.get(untyped._cdata)
    if size < SEGMENT_FROM or (memory is not None and memory.low is None):
        return None
    item, low = tensor.element_size(), tensor.storage_offset() * tensor.element_size()
    high = low
    if tensor.numel():
        steps = zip(tensor.size(), tensor.stride(), strict=True)
        high += item * (1 + sum((count - 1) * stride for count, stride in steps))
    if memory is None and high - low >= size:
        return None
    reduced = tensor.__reduce_ex__(5)
    function, (storage, offset, *facts) = reduced[0], reduced[1]
    if function.__name__ != "_rebuild_tensor_v2" or len(reduced) > 2:
        return reduced  # one with more than a storage: of another class, quantized, with attributes
    if memory is None:
        memory = known[untyped._cdata] = Memory(untyped, (low, high))
    memory.widen(low, high)
    return _rebuild_in_span, (function, type(storage), storage.dtype, memory, offset, item, *facts)


class Span:
    """A storage of which a part has come; `low`: how many bytes of it have not, in front."""

    __slots__ = ("low", "untyped")

    def __init__(self, low: Any, buffer: Any) -> None:
        self.low = int.from_bytes(low, "big")
        self.untyped = _rebuild_untyped(buffer)


def _rebuild_in_span(
    function: Any, kind: Any, dtype: Any, span: Span, offset: int, item: int, *facts: Any
) -> Any:
    storage = _rebuild_typed(kind, dtype, span)
    return function(storage, offset - span.low // item, *facts)


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
    return kind(wrap_storage=_same(untyped), dtype=dtype, _internal=True)


def _same(value: Any) -> Any:
    # Of a span that came whole: something in the message referred to the storage itself.
    return value.untyped if type(value) is Span else value
