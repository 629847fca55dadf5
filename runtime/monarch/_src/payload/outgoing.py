"""Payloads for other hosts, kept until the gateway there has fetched them.

Runs in: any process that sends large payloads to other hosts. Requests for pieces arrive on the
receiving thread; pieces are sent without a copy.
Owns: views of the payloads, which keep the segments alive.
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
    """The payloads that other hosts may fetch, by number."""

    def __init__(self) -> None:
        self._lock = GuardedLock()
        self._kept: dict[int, _Kept] = {}
        self._numbers = itertools.count(1)
        self.bytes = 0  # fetched by other hosts so far
        self.bulk_bytes = 0  # those of them that were fetched beside the links
        self._waits: Counter[str] = Counter()
        self.on_removed: Callable[[str], None] = lambda _: None  # called with the site

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, node: str, site: str, key: int, parts: Sequence[memoryview]) -> int:
        """Keep these parts for that node; returns the number by which its host requests them."""
        with self._lock:
            number = next(self._numbers)
            self._kept[number] = _Kept(node, site, key, parts)
            self._waits[site] += sum(map(len, parts))
        return number

    def waits(self, site: str) -> int:
        """How many bytes wait here for that site, including those on their way."""
        return self._waits[site]

    def piece(self, key: int, number: int, part: int, at: int, size: int) -> memoryview | None:
        """A piece of a part, to be sent over a link; None if the payload is gone."""
        view = self.view(key, number, part, at, size)
        if view is not None:
            self.bytes += size
        return view

    def view(self, key: int, number: int, part: int, at: int, size: int) -> memoryview | None:
        """A piece of a part; None if the payload is gone. Any thread."""
        kept = self._kept.get(number)
        if kept is None or kept.key != key or not 0 <= part < len(kept.parts):
            return None
        view = kept.parts[part]
        if not 0 <= at < at + size <= len(view):
            return None
        return view[at : at + size]

    def taken(self, key: int, number: int, bulk: int = 0) -> None:
        """The host that fetched the payload has all of it, or no longer wants it.

        `bulk`: how many of its bytes were fetched beside the link.
        """
        with self._lock:
            self.bytes += bulk
            self.bulk_bytes += bulk
            kept = self._kept.get(number)
            if kept is None or kept.key != key:
                return
            self._drop([number])
        self.on_removed(kept.site)

    def gone(self, node: str) -> None:
        """That node has ended: drop its payloads."""
        with self._lock:
            theirs = {n: kept.site for n, kept in self._kept.items() if kept.node == node}
            self._drop(theirs)
        for site in set(theirs.values()):
            self.on_removed(site)

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
        """Drop all payloads."""
        with self._lock:
            self._kept = {}
            self._waits.clear()
