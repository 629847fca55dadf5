"""The owner's side of `ibverbs`: queue pairs for peers with handles, and keys of regions.

The owner only hands out addresses and keys; its card moves the bytes, whatever this process does.

Runs in: threads of the pool, when a peer sends a request over the control plane.
Owns: the queue pairs that peers are connected to, a registration of the block that they probe.
Invariants: a peer that has ended or hung up has no queue pair here. Keys are given only to peers
with queue pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from monarch._src.rdma.handle import Owner
from monarch._src.rdma.regions import PROBE_BYTES, Regions
from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.verbs.card import Card, first_packet
from monarch._src.rdma.verbs.channel import LANES, connect_all
from monarch._src.rdma.verbs.device_choice import why_not_together
from monarch._src.rdma.verbs.grants import Grants
from monarch._src.rdma.verbs.protocol import Connect, Connected, Ends, Grant, Wants
from monarch._src.rdma.verbs.protocol import Grants as GrantsAnswer


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
        self.grants = Grants(card, regions, self.cut_all)
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

    def grant(self, said: Wants) -> GrantsAnswer:
        """The addresses and keys of regions, for a connected peer."""
        with self._lock:
            if said.channel not in self._served:
                return GrantsAnswer(False)
        return GrantsAnswer(True, tuple(self._granted(said)))

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
