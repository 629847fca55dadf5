"""The regions that peers may reach over the card of this process, and the card's keys for them.

When the first peer asks for a region, its whole storage is registered with the card, and the peer
gets the address and the key. The card checks the key with every packet, so the owner need not run.
When a region is dropped or its memory ends, the registration ends first; other regions of that
storage are registered anew, under another key, when a peer asks again. So a peer whose key was
refused asks the owner: the handle has expired, or there is a new key.

Runs in: the owner; `retired` on any thread, at any moment.
Invariants: everything happens under the lock of the Regions, the one that is taken when memory
ends. A key that a peer knows ends before the memory does, and is granted for no other memory while
a queue pair exists whose peer could remember it (`expired`): the card may issue the number of an
expired key again, and a peer that remembers it would reach the new memory. When there are too many
such keys, all queue pairs are closed, and the record is cleared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from monarch._src.rdma.memory import span_of_root
from monarch._src.rdma.regions import Held, Regions
from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.verbs.card import Card
from monarch._src.rdma.verbs.protocol import Grant, Want

MOST = 1 << 16


class ExpiredKeys:
    """The record of expired keys."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._keys: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def ended(self, key: int) -> bool:
        """Record that a key has expired. True: close all queue pairs, then call `forget`."""
        self._keys.add(key)
        return len(self._keys) >= self._most

    def forget(self) -> None:
        """Clear the record: no peer with a queue pair can remember a key."""
        self._keys.clear()


class _Registration(msgspec.Struct, eq=False):
    mr: Any
    start: int
    size: int
    slots: set[int] = msgspec.field(default_factory=set[int])  # those that peers know


class Grants:
    """Grants peers access to regions."""

    def __init__(self, card: Card, regions: Regions, cut_all: Callable[[], None]) -> None:
        """`cut_all`: destroys all queue pairs of peers to this process."""
        self._card = card
        self._regions = regions
        self._cut_all = cut_all
        self._of_slot: dict[int, _Registration] = {}
        self._of_storage: dict[tuple[int, int, bool], _Registration] = {}
        self.expired = ExpiredKeys()
        self.registered = 0
        regions.on_retired = self.retired

    def grant(self, want: Want) -> Grant:
        """The address of that region, and its key."""
        with self._regions.lock:
            held = self._regions.hold(want.slot, want.key)
            if held is None:
                return Grant(0, 0, stale=True)
            try:
                if held.size != want.size:
                    return Grant(0, 0, stale=True)
                if held.device is not None:  # a correct peer does not ask for it
                    return Grant(0, 0, reason="it is memory of a GPU")
                found = self._of_slot.get(want.slot)
                if found is None:
                    found = self._registered(held)
                    found.slots.add(want.slot)
                    self._of_slot[want.slot] = found
                return Grant(held.address, found.mr.rkey, held.readonly)
            except TransportFailed as error:
                return Grant(0, 0, reason=error.why.reason, remedy=error.why.remedy)
            finally:
                self._regions.release(held)

    def _registered(self, held: Held) -> _Registration:
        start, size = span_of_root(held.keep[0], held.address, held.size)
        key = start, size, held.readonly
        known = self._of_storage.get(key)
        if known is None:
            known = _Registration(self._fresh(start, size, writable=not held.readonly), start, size)
            self._of_storage[key] = known
            self.registered += 1
        return known

    def _fresh(self, start: int, size: int, *, writable: bool) -> Any:
        """A registration whose key no peer could know from earlier memory."""
        card, spare = self._card, list[Any]()
        try:
            while True:
                mr = card.verbs.register(card.domain, start, size, writable=writable, remote=True)
                if mr.rkey not in self.expired:
                    return mr
                spare.append(mr)  # kept for now, so that the card does not issue its key again
        finally:
            for mr in spare:
                card.verbs.close(mr)

    def retired(self, slot: int) -> None:
        """A region has left the table; its memory may be freed next."""
        with self._regions.lock:
            found = self._of_slot.pop(slot, None)
            if found is None:
                return
            for other in found.slots:
                self._of_slot.pop(other, None)
            for key in [k for k, v in self._of_storage.items() if v is found]:
                del self._of_storage[key]
            key = found.mr.rkey
            self._card.verbs.close(found.mr)
            if self.expired.ended(key):
                self._cut_all()
                self.expired.forget()

    def on_last_peer_gone(self) -> None:
        """The queue pairs of the last peer have been destroyed."""
        with self._regions.lock:
            self.expired.forget()

    def close(self) -> None:
        """End all registrations."""
        with self._regions.lock:
            self._regions.on_retired = None
            for found in self._of_storage.values():
                self._card.verbs.close(found.mr)
            self._of_storage.clear()
            self._of_slot.clear()

    def validate(self) -> None:
        """Raise AssertionError if the tables contradict each other."""
        with self._regions.lock:
            for slot, found in self._of_slot.items():
                assert slot in found.slots
                assert found in self._of_storage.values()
                assert found.mr.rkey not in self.expired
