"""The values that `push` and `scatter` have bound on ranks, as they were then. No I/O.

They are kept as pickles, for ranks that are restarted. A reference to the object would keep its
later changes, and a copy of another rank's value would have the changes of cells there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from monarch._src.wire.frames import Payload

MOST_KEPT = 64 << 20
"""Bytes that are kept for one proc mesh."""


class _Bound(NamedTuple):
    """A value on some ranks; `payload` is None if it was too large to be kept."""

    name: str
    ranks: frozenset[int]
    payload: Payload | None


class PushedNames:
    """The names of one proc mesh. Of values of one name, the latest of each rank counts."""

    def __init__(self) -> None:
        self._bound: list[_Bound] = []

    def bound(self, name: str, ranks: Collection[int], payload: Payload) -> None:
        """A value was bound on these ranks."""
        here = frozenset(ranks)
        left = [one._replace(ranks=one.ranks - here) if one.name == name else one
                for one in self._bound]  # fmt: skip
        self._bound = [one for one in left if one.ranks]
        held = sum(one.payload.nbytes for one in self._bound if one.payload is not None)
        kept = payload.settled() if held + payload.nbytes <= MOST_KEPT else None
        self._bound.append(_Bound(name, here, kept))

    def on(self, rank: int) -> dict[str, Payload | None]:
        """The values of a rank by name; None: not kept."""
        return {one.name: one.payload for one in self._bound if rank in one.ranks}

    def __bool__(self) -> bool:
        return bool(self._bound)
