"""The texts of values, which are equal for two ranks only if the contents of their values are.

The text of a large array or of an object does not tell all of it. So values with the same text are
compared by a digest of their contents; if contents differ, each text gets a part of its digest.
Values on a device, of more than `MOST_COMPARED` bytes together, or of a class that cannot be
pickled are not compared, and their text says so.

No I/O. `__repr__` and `__reduce__` of values may be called.
"""

from __future__ import annotations

import hashlib
import math
import numbers
import pickle
import sys
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

MOST_ELEMENTS = 8
"""Elements of a tensor that its text shows."""
MOST_COMPARED = 256 << 20
"""Bytes: comparing them takes about a third of a second."""
NOT_COMPARED = " (contents not compared)"
_MOST_PARTS = 10_000  # of a container whose text is taken for all of it
_ATOMS = (bool, bytes, complex, float, int, str, type(None))


@runtime_checkable
class TensorLike(Protocol):
    """The common attributes of arrays of torch, numpy and similar libraries."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...


def value_texts(values: Sequence[object]) -> list[str]:
    """A text for each value. Equal texts mean equal contents, unless they end in `NOT_COMPARED`."""
    texts = [value_text(value) for value in values]
    at: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        if not _says_all(values[index]):
            at.setdefault(text, []).append(index)
    left = MOST_COMPARED
    for text, indices in at.items():
        # Ranks with equal payloads share an object.
        objects = {id(values[index]): values[index] for index in indices}
        if len(objects) == 1:
            continue
        of_object: dict[int, str | None] = {}
        for key, value in objects.items():
            of_object[key], size = _digest(value, left)
            left -= size
        digests = [of_object[id(values[index])] for index in indices]
        if None in digests:
            suffixes = [NOT_COMPARED] * len(indices)
        elif len(set(digests)) > 1:
            suffixes = [f", contents {digest}" for digest in digests]
        else:
            continue
        for index, suffix in zip(indices, suffixes, strict=True):
            texts[index] = text + suffix
    return texts


def value_text(value: object) -> str:
    """The type, shape and few elements of a tensor, or the repr of any other value."""
    if is_tensor(value):
        return _tensor_text(value)
    return repr(value)


def is_tensor(value: object) -> bool:
    """Whether it is an array or tensor, and no scalar."""
    return isinstance(value, TensorLike) and not isinstance(value, numbers.Number)


def device_text(tensor: object) -> str:
    """` on cuda:0`, for a tensor that is not in the memory of the host."""
    device = getattr(tensor, "device", None)
    return f" on {device}" if device is not None and str(device) != "cpu" else ""


def _tensor_text(value: Any) -> str:
    kind = f"{type(value).__name__} {value.dtype} {list(value.shape)}"
    if not _shows_elements(value):
        return kind + device_text(value)
    return f"{kind} = {_element(value) if math.prod(value.shape) == 1 else value.tolist()!r}"


def _element(value: Any) -> object:
    if not hasattr(value, "tolist"):
        return value.item()
    element = value.tolist()  # `item` of a masked array gives the number behind the mask
    for _ in value.shape:
        element = element[0]
    return element


def _shows_elements(value: Any) -> bool:
    # Only in host memory: reading from a device would block.
    if device_text(value):
        return False
    size = math.prod(value.shape)
    if size == 1:
        return hasattr(value, "item")
    return 0 < size <= MOST_ELEMENTS and hasattr(value, "tolist")


def _says_all(value: object) -> bool:
    """Whether values with the same text have the same contents."""
    if is_tensor(value):
        return _shows_elements(value)
    left = [value]
    for _ in range(_MOST_PARTS):
        if not left:
            return True
        part = left.pop()
        if type(part) in (list, tuple, set, frozenset):
            left += cast("Sequence[object]", part)
        elif type(part) is dict:
            left += [*part.keys(), *part.values()]
        elif type(part) not in _ATOMS:
            return False
    return False


# --- digests --------------------------------------------------------------------------------------


class _NotComparableError(Exception):
    """The contents cannot be read, or there are too many."""


class _Hash:
    """A file of which only the digest is kept."""

    def __init__(self, most: int) -> None:
        self.size = 0
        self._most = most
        self._hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.size += size
        if self.size > self._most:
            raise _NotComparableError
        self._hash.update(data)
        return size

    def digest(self) -> str:
        return self._hash.hexdigest()[:8]


class _Pickler(pickle.Pickler):
    """Pickles by value alone: without references between parts, or the addresses of tensors."""

    def __init__(self, file: _Hash) -> None:
        super().__init__(file, protocol=5)
        self.fast = True  # no memo

    def reducer_override(self, obj: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(obj, torch.Tensor):
            return NotImplemented
        about = (type(obj).__qualname__, str(obj.dtype), tuple(obj.shape))
        return _tensor, (*about, _bytes(obj, torch))


def _tensor(*_: object) -> None:
    """Stands for a tensor in a pickle that is never loaded."""


def _bytes(tensor: Any, torch: Any) -> pickle.PickleBuffer:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise _NotComparableError
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return pickle.PickleBuffer(flat.view(torch.uint8).numpy())


def _digest(value: object, most: int) -> tuple[str | None, int]:
    """The digest of a value and how many bytes it took; None if it cannot be compared."""
    file = _Hash(most)
    try:
        _Pickler(file).dump(value)
    except Exception:  # of any class: `__reduce__` is the user's code
        return None, file.size
    return file.digest(), file.size
