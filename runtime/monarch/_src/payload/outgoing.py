"""Payloads that other hosts are to get: kept until the gateway there has fetched them.

Runs in: any process that sends large payloads to other hosts; pieces are asked for on the thread
that receives, and leave without a copy. Owns: views of what was sent, which hold its segment.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from monarch._src.net.local.interrupt import GuardedLock


class _Kept(msgspec.Struct, eq=False):
    node: str
    site: str
    key: int
    parts: Sequence[memoryview]


class OutgoingPayloads:
    """By the number that stands for a receiver's payload: what it is to get."""

    def __init__(self) -> None:
        self._lock = GuardedLock()
        self._kept: dict[int, _Kept] = {}
        self._numbers = itertools.count(1)
        self.bytes = 0  # that other hosts have fetched, so far
        self.bulk_bytes = 0  # those of them that did not go over a link
        self._waits: Counter[str] = Counter()
        self.on_less: Callable[[str], None] = lambda _: None  # told of a site that fewer wait for

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, node: str, site: str, key: int, parts: Sequence[memoryview]) -> int:
        """That node is to get these parts: by which number its host may ask for them."""
        with self._lock:
            number = next(self._numbers)
            self._kept[number] = _Kept(node, site, key, parts)
            self._waits[site] += sum(map(len, parts))
        return number

    def waits(self, site: str) -> int:
        """How many bytes wait here for that site, those on their way included."""
        return self._waits[site]

    def piece(self, key: int, number: int, part: int, at: int, size: int) -> memoryview | None:
        """A piece of a part, which leaves by a link; None if there is no such any more."""
        view = self.view(key, number, part, at, size)
        if view is not None:
            self.bytes += size
        return view

    def view(self, key: int, number: int, part: int, at: int, size: int) -> memoryview | None:
        """A piece of a part; None if there is no such any more. On any thread."""
        kept = self._kept.get(number)
        if kept is None or kept.key != key or not 0 <= part < len(kept.parts):
            return None
        view = kept.parts[part]
        if not 0 <= at < at + size <= len(view):
            return None
        return view[at : at + size]

    def taken(self, key: int, number: int, bulk: int = 0) -> None:
        """Whoever asked for that has it, or does not want it any more.

        `bulk`: how much of it has not left by a link.
        """
        with self._lock:
            self.bytes += bulk
            self.bulk_bytes += bulk
            kept = self._kept.get(number)
            if kept is None or kept.key != key:
                return
            self._drop([number])
        self.on_less(kept.site)

    def gone(self, node: str) -> None:
        """That node gets nothing any more."""
        with self._lock:
            theirs = {n: kept.site for n, kept in self._kept.items() if kept.node == node}
            self._drop(theirs)
        for site in set(theirs.values()):
            self.on_less(site)

    def _drop(self, numbers: Iterable[int]) -> None:
        """Under the lock."""
        for number in numbers:
            kept = self._kept.pop(number)
            self._waits[kept.site] -= sum(map(len, kept.parts))
            if not self._waits[kept.site]:
                del self._waits[kept.site]

    def renamed(self, old: str, new: str) -> None:
        """A receiver is known by another name now."""
        for kept in list(self._kept.values()):
            if kept.node == old:
                kept.node = new

    def clear(self) -> None:
        """Nobody gets anything any more."""
        with self._lock:
            self._kept = {}
            self._waits.clear()
