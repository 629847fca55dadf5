"""Memory of torch tensors, pickled once and out of band; attributes of numpy subclasses. No I/O.

A tensor's own reduction writes its storage into the stream as a file of `torch.save`: several
copies, and one more for each tensor that shares the storage. Here a CPU storage is one buffer,
which travels out of band if it is large. Tensors of one message that share memory share it in the
receiver too. A storage that came out of band cannot be enlarged in place (`resize_`).

If the tensors of a message use only a part of a large storage, the span from the first used byte to
the last one travels. The span is known only after the whole message has been pickled; until then
its place among the buffers is reserved (`Memory.settle`).

numpy pickles an array of any class as its dtype, shape and bytes, and a masked array with mask and
fill value too. An attribute that a subclass adds would be missing at the receiver, or have the
default of its `__array_finalize__`, and a hard mask would be soft.

torch is imported here only to rebuild a tensor, and numpy never: a sender with a tensor or an array
has imported it already.
"""

from __future__ import annotations

import copyreg
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any, cast

from monarch._src.wire.segment_refs import SEGMENT_FROM

# Attributes that numpy's own subclasses make anew. A masked array has those of its data too.
_OF_NUMPY = frozenset({
    "_basedict", "_baseclass", "_fill_value", "_getitem", "_hardmask", "_isfield", "_mask", "_mmap",
    "_optinfo", "_sharedmask",
})  # fmt: skip
_OF_MEMMAPS = frozenset({"filename", "offset", "mode"})
_MISSING = object()
_ALIGNED = 64  # bytes; more than any type of torch needs


def own_attributes(array: Any) -> dict[str, Any]:
    """The attributes that its class or the program has added to a numpy array, slots included."""
    kind: type[Any] = type(cast(object, array))
    found: dict[str, Any] = dict(getattr(array, "__dict__", {}))
    for name in cast(Any, copyreg)._slotnames(kind):
        value = getattr(array, name, _MISSING)
        if value is not _MISSING:
            found[name] = value
    info: dict[str, Any] = found["_optinfo"] if "_hardmask" in found else {}
    return {name: value for name, value in _without_numpys(found).items() if name not in info}


def info_of(masked: Any) -> dict[str, Any]:
    """Attributes that the program has given to a masked array and to all of its views."""
    inner = cast("dict[str, Any]", vars(masked))
    return _without_numpys(inner["_optinfo"])


def _without_numpys(attributes: dict[str, Any]) -> dict[str, Any]:
    left_out = _OF_NUMPY | _OF_MEMMAPS if "_mmap" in attributes else _OF_NUMPY
    return {name: value for name, value in attributes.items() if name not in left_out}


def reduce_array(array: Any, kind: type[Any]) -> tuple[Any, ...] | None:
    """The reduction of an array with attributes that numpy leaves out; None: use the array's own.

    A class that defines its own reduction, or `__setstate__`, is left alone.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or kind is numpy.ndarray or not issubclass(kind, numpy.ndarray):
        return None
    masked: Any = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    base = masked if masked is not None and issubclass(kind, masked) else numpy.ndarray
    if any(
        getattr(kind, name) is not getattr(base, name)
        for name in ("__reduce__", "__reduce_ex__", "__setstate__")
    ):
        return None
    kept = own_attributes(array)
    if base is masked:
        inner = cast("dict[str, Any]", vars(array))
        info = info_of(array)
        if inner["_hardmask"] or info:
            held = _without_numpys(inner["_basedict"])  # what views get at last
            kept |= {"_hardmask": inner["_hardmask"], "_optinfo": info, "_basedict": held, **info}
        if inner["_mask"] is sys.modules["numpy.ma"].nomask:
            kept["_mask"] = inner["_mask"]
    if not kept:
        return None
    make, made_of, state = array.__reduce__()
    return make, made_of, (state, kept), None, None, fill_array


def fill_array(array: Any, state: Any) -> None:
    """Give an array that was just made its elements and attributes."""
    of_numpy, kept = state
    array.__setstate__(of_numpy)
    for name, value in kept.items():
        object.__setattr__(array, name, value)


class Memory:
    """One untyped storage in a pickle; unpickles as a storage over the received memory.

    low, high: the range of used bytes, if it is known only at the end; the object then unpickles as
    a `Span`. None: all bytes are used.
    """

    __slots__ = ("_untyped", "high", "low", "pieces")

    def __init__(self, untyped: Any, span: tuple[int, int] | None = None) -> None:
        self._untyped = untyped
        self.low, self.high = span or (None, None)
        self.pieces: tuple[pickle.PickleBuffer, pickle.PickleBuffer] | None = None

    def widen(self, low: int, high: int) -> None:
        """Include these bytes."""
        assert self.low is not None
        assert self.high is not None
        self.low, self.high = min(self.low, low), max(self.high, high)

    def whole(self) -> None:
        """Include all bytes."""
        if self.low is not None:
            self.widen(0, self._untyped.nbytes())

    def make_pieces(self) -> tuple[pickle.PickleBuffer, pickle.PickleBuffer]:
        """Placeholders for the start of the span and for its bytes."""
        self.pieces = pickle.PickleBuffer(bytes(8)), pickle.PickleBuffer(_bytes_of(self._untyped))
        return self.pieces

    def settle(self) -> tuple[bytes, memoryview]:
        """The start of the span, and its bytes: the contents for the two placeholders."""
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
    """The reduction of a `TypedStorage` or `UntypedStorage`; None for one on a device.

    Args:
        known: the storages of this message, by the address of their shared implementation.
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
    """The reduction of a tensor that uses a part of a large storage; None: use torch's own."""
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
        return reduced  # another class, or quantized, or with attributes
    if memory is None:
        memory = known[untyped._cdata] = Memory(untyped, (low, high))
    memory.widen(low, high)
    return _rebuild_in_span, (function, type(storage), storage.dtype, memory, offset, item, *facts)


class Span:
    """A storage of which a part has come; `low`: the number of bytes missing at its start."""

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


def substitute_of(function: Any) -> Callable[[], Any] | None:
    """The object that unpickles as our substitute for a function of torch that rebuilds tensors."""
    if function.__module__ != "torch._utils":
        return None
    return _SUBSTITUTES.get(function.__name__)


def rebuild_of_untyped() -> Any:
    """Our function for tensors of newer types, which torch rebuilds from untyped storages.

    Torch's function expects storages as `torch.load` returns them, which have a type.
    """
    return _rebuild_from_untyped


def rebuild_of_sparse() -> Any:
    """Our function for sparse tensors.

    Torch's function keeps each tensor for a check at the end of `torch.load`. Nothing would ever
    take it from there.
    """
    return _rebuild_sparse


_SUBSTITUTES: dict[str, Callable[[], Any]] = {
    "_rebuild_tensor_v3": rebuild_of_untyped,
    "_rebuild_sparse_tensor": rebuild_of_sparse,
}


def _rebuild_from_untyped(storage: Any, *facts: Any) -> Any:
    torch = _torch()
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
    return torch._utils._rebuild_tensor_v3(typed, *facts)


def _rebuild_sparse(*facts: Any) -> Any:
    torch = _torch()
    made = torch._utils._rebuild_sparse_tensor(*facts)
    kept: list[Any] = getattr(torch._utils, "_sparse_tensors_to_validate", [])
    for at in reversed(range(len(kept))):  # another thread may have added one
        if kept[at] is made:
            del kept[at]
            break
    return made


def _torch() -> Any:
    return importlib.import_module("torch")


def _rebuild_typed(kind: Any, dtype: Any, untyped: Any) -> Any:
    return kind(wrap_storage=_same(untyped), dtype=dtype, _internal=True)


def _same(value: Any) -> Any:
    # A span of the whole storage: an object in the message referred to the storage itself.
    return value.untyped if type(value) is Span else value
