"""The facts of a tensor that the client has: all but the values.

Equal `Meta`s are one object, so the keys of the cache compare and hash them by identity. A dtype
and a device are hashable objects of torch.
"""

from __future__ import annotations

from typing import Any

UNPLACED = 4
"""A bit of `Meta.bits`: only ranks know the offset, as of `x[i]` with an `i` on the ranks."""


class Meta:
    """Shape, strides, offset in the storage, dtype, device, and bytes of the storage.

    `bits`: the sum of 1 if torch reads the values in the storage as conjugated, 2 if as negated,
    and UNPLACED.
    """

    __slots__ = ("bits", "device", "dtype", "nbytes", "offset", "shape", "strides")

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: Any,
        device: Any, nbytes: int, bits: int = 0,
    ) -> None:  # fmt: skip
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.dtype = dtype
        self.device = device
        self.nbytes = nbytes
        self.bits = bits

    def __repr__(self) -> str:
        return f"<Meta {self.dtype} {list(self.shape)} of {self.nbytes} bytes>"


class Metas:
    """All metas of this process."""

    def __init__(self) -> None:
        self._known: dict[Any, Meta] = {}

    def of(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: Any,
        device: Any, nbytes: int, bits: int = 0,
    ) -> Meta:  # fmt: skip
        """The one meta of these facts."""
        key = (shape, strides, offset, dtype, device, nbytes, bits)
        found = self._known.get(key)
        if found is None:
            found = self._known.setdefault(key, Meta(*key))
        return found


class Storage:
    """The memory that a tensor and its views share on each rank.

    `unusable`: the reason why no operation may use it; empty while operations may. `lent`: how many
    streams read it by a borrow, so that no operation may write to it. A borrowed tensor has the
    memory of its lender and a `Storage` of its own, which is `borrowed`.
    """

    __slots__ = ("borrowed", "lent", "unusable")

    def __init__(self, borrowed: bool = False) -> None:
        self.unusable = ""
        self.lent = 0
        self.borrowed = borrowed


class Handle:
    """A tensor on the ranks: its number there, its meta, and its storage.

    When the handle is collected, the ranks may free the tensor. `owner`: for the part of a tensor
    on a slice of its mesh, the handle of the whole tensor, which has the same number. `base`: of an
    UNPLACED tensor, the handle of a tensor that has the same memory and is not UNPLACED.
    """

    __slots__ = ("base", "channel", "freed", "meta", "number", "owner", "storage")

    def __init__(
        self, number: int, meta: Meta, storage: Storage, channel: Any, owner: Handle | None = None,
        base: Handle | None = None,
    ) -> None:  # fmt: skip
        self.number = number
        self.meta = meta
        self.storage = storage
        self.channel = channel
        self.owner = owner
        self.base = base
        self.freed = owner is not None

    def __del__(self) -> None:
        if not self.freed:
            self.freed = True
            self.channel.free(self.number)
