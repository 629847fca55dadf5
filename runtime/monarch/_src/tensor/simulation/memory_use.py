"""The memory that the tensors of a simulation take on each rank, now and at most."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any


class StorageUse:
    """The memory of some tensors, freed with the last of them. `ready_s`: when it is written."""

    __slots__ = ("nbytes", "ranks", "ready_s", "tensors")

    def __init__(self, nbytes: int, ranks: Sequence[int]) -> None:
        self.nbytes = nbytes
        self.ranks = ranks
        self.tensors = 0
        self.ready_s = 0.0


class MemoryUse:
    """Follows tensors without values from their making until they are freed."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}  # bytes by rank
        self.peak: dict[int, int] = {}
        self._storages: dict[int, StorageUse] = {}  # by the address of torch's storage

    def storage_of(self, tensor: Any) -> StorageUse | None:
        """The storage of a tensor that is followed."""
        return self._storages.get(tensor.untyped_storage()._cdata)

    def follow(self, tensor: Any, ranks: Sequence[int]) -> StorageUse:
        """Count a new tensor on these ranks; one that shares memory takes none of its own."""
        address = tensor.untyped_storage()._cdata
        found = self._storages.get(address)
        if found is None:
            found = self._storages[address] = StorageUse(tensor.untyped_storage().nbytes(), ranks)
            for rank in ranks:
                now = self.live[rank] = self.live.get(rank, 0) + found.nbytes
                if now > self.peak.get(rank, 0):
                    self.peak[rank] = now
        found.tensors += 1
        weakref.finalize(tensor, self._forget, address).atexit = False
        return found

    def _forget(self, address: int) -> None:
        storage = self._storages[address]
        storage.tensors -= 1
        if not storage.tensors:
            del self._storages[address]
            for rank in storage.ranks:
                self.live[rank] -= storage.nbytes
