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
    """A value on some ranks; `payload` is None if it is not kept, and `why` says why not."""

    name: str
    ranks: frozenset[int]
    payload: Payload | None
    why: str


class PushedNames:
    """The names of one proc mesh. Of values of one name, the latest of each rank counts."""

    def __init__(self) -> None:
        self._bound: list[_Bound] = []

    def bound(self, name: str, ranks: Collection[int], payload: Payload | None) -> None:
        """A value was bound on these ranks. `payload`: None if it refers to objects there."""
        here = frozenset(ranks)
        left = [one._replace(ranks=one.ranks - here) if one.name == name else one
                for one in self._bound]  # fmt: skip
        self._bound = [one for one in left if one.ranks]
        held = sum(one.payload.nbytes for one in self._bound if one.payload is not None)
        if payload is None:
            kept, why = None, "with objects of the ranks"
        elif held + payload.nbytes > MOST_KEPT:
            kept, why = None, "too large to be kept"
        else:
            kept, why = payload.settled(), ""
        self._bound.append(_Bound(name, here, kept, why))

    def on(self, rank: int) -> dict[str, Payload | None]:
        """The values of a rank by name; None: not kept."""
        return {one.name: one.payload for one in self._bound if rank in one.ranks}

    def why_not(self, rank: int) -> dict[str, str]:
        """The names of a rank whose values are not kept, and why not."""
        return {one.name: one.why for one in self._bound if one.why and rank in one.ranks}

    def __bool__(self) -> bool:
        return bool(self._bound)
