"""The owner's side of `ibverbs`: queue pairs for peers with handles, and keys of regions.

The owner only hands out addresses and keys; its card moves the bytes, whatever this process does.
When the first peer asks for a region, its whole storage is registered with the card, and the peer
gets the address and the key. The card checks the key with every packet, so the owner need not run.
When a region is dropped or its memory ends, the registration ends first; other regions of that
storage are registered anew, under another key, when a peer asks again. So a peer whose key was
refused asks the owner: the handle has expired, or there is a new key.

Runs in: threads of the pool, when a peer sends a request over the control plane; `retired` on any
thread, at any moment.
Owns: the queue pairs that peers are connected to, a registration of the block that they probe.
Invariants: a peer that has ended or hung up has no queue pair here. Keys are given only to peers
with queue pairs, under the lock of the Regions, the one that is taken when memory ends. A key that
a peer knows ends before the memory does, and is granted for no other memory while a queue pair
exists whose peer could remember it (`expired`): the card may issue the number of an expired key
again, and a peer that remembers it would reach the new memory. When there are too many such keys,
all queue pairs are closed, and the record is cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch._src.rdma.handle import Owner
from monarch._src.rdma.memory import span_of_root
from monarch._src.rdma.regions import PROBE_BYTES, Held, Regions
from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.verbs.card import Card, first_packet
from monarch._src.rdma.verbs.channel import LANES, connect_all
from monarch._src.rdma.verbs.device_choice import why_not_together
from monarch._src.rdma.verbs.protocol import Connect, Connected, Ends, Grant, Grants, Want, Wants

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


class GrantedRegions:
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


class _Served(msgspec.Struct, eq=False):
    who: Owner
    pairs: list[Any]


class VerbsServer:
    """Serves peers. Raises TransportFailed if the probe block cannot be registered."""

    def __init__(self, card: Card, regions: Regions) -> None:
        self._card = card
        # The lock that is taken when memory ends, which may close queue pairs.
        self._lock = regions.lock
        self._served: dict[bytes, _Served] = {}
        self._closed = False
        address = regions.probe_address
        self._probe = card.verbs.register(
            card.domain, address, PROBE_BYTES, writable=True, remote=True
        )
        self._queue = card.verbs.completion_queue(card.context, 1, None)  # stays empty
        self.grants = GrantedRegions(card, regions, self.cut_all)
        self._probed = address, self._probe.rkey, PROBE_BYTES

    def connect(self, said: Connect) -> Connected:
        """Make queue pairs for a peer, connected to its own."""
        place = said.ends.place
        why = why_not_together(self._card.place, place.link_layer, place.gid.kind)
        if why:
            return Connected(None, reason=why)
        if len(said.ends.pairs) > 4 * LANES:
            return Connected(None, reason=f"{len(said.ends.pairs)} queue pairs are too many")
        try:
            pairs, ends = self._connected(said.ends)
        except TransportFailed as error:
            return Connected(None, reason=error.why.reason, remedy=error.why.remedy)
        with self._lock:
            if not self._closed:
                self._served[said.channel] = _Served(said.who, pairs)
                return Connected(ends, *self._probed)
        self._card.destroy(pairs)
        return Connected(None, reason="it is leaving its session")

    def _connected(self, theirs: Ends) -> tuple[list[Any], Ends]:
        card = self._card
        pairs = card.queue_pairs(len(theirs.pairs), self._queue, 1)
        try:
            first = [first_packet() for _ in pairs]
            connect_all(card, pairs, first, theirs)
        except BaseException:
            card.destroy(pairs)
            raise
        return pairs, card.ends(pairs, first)

    def grant(self, said: Wants) -> Grants:
        """The addresses and keys of regions, for a connected peer."""
        with self._lock:
            if said.channel not in self._served:
                return Grants(False)
        return Grants(True, tuple(self._granted(said)))

    def _granted(self, said: Wants) -> Sequence[Grant]:
        return [self.grants.grant(want) for want in said.wants]

    # --- ends of connections ----------------------------------------------------------------------

    def peers(self) -> list[Owner]:
        """The connected peers, without repetition."""
        with self._lock:
            return list(
                {served.who.incarnation: served.who for served in self._served.values()}.values()
            )

    def hang_up(self, channel: bytes) -> None:
        """The peer has closed that connection."""
        with self._lock:
            self._drop([channel])

    def forget(self, incarnation: bytes) -> None:
        """That peer has ended."""
        with self._lock:
            self._drop(
                [name for name, s in self._served.items() if s.who.incarnation == incarnation]
            )

    def cut_all(self) -> None:
        """Destroy the connections of all peers, which have to connect anew."""
        with self._lock:
            self._drop(list(self._served))

    def _drop(self, names: list[bytes]) -> None:
        for name in names:
            served = self._served.pop(name, None)
            if served is not None:
                self._card.destroy(served.pairs)
        if not self._served:
            self.grants.on_last_peer_gone()

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._served)

    def close(self) -> None:
        """Destroy everything. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop(list(self._served))
        self.grants.close()
        self._card.verbs.close(self._probe)
        self._card.verbs.close(self._queue)
