"""The owner's side of `ibverbs`: queue pairs for whoever has a handle, and keys of regions.

The owner only says where things are: bytes are moved by its card, whatever this process does.

Runs in: threads of the pool, when a peer asks something over the control plane.
Owns: the queue pairs that peers are connected to, a registration of the block that they probe.
Invariants: a peer that has ended, or has hung up, has no queue pair here; keys are told to peers
with queue pairs only.
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
    """See the module's text. Raises Broken: the probe block cannot be registered."""

    def __init__(self, card: Card, regions: Regions) -> None:
        self._card = card
        # The one that the end of memory takes, since that may close queue pairs.
        self._lock = regions.lock
        self._served: dict[bytes, _Served] = {}
        self._closed = False
        address = regions.probe_address
        self._probe = card.verbs.register(
            card.domain, address, PROBE_BYTES, writable=True, remote=True
        )
        self._queue = card.verbs.completion_queue(card.context, 1, None)  # never has anything
        self.grants = Grants(card, regions, self.cut_all)
        self._probed = address, self._probe.rkey, PROBE_BYTES

    def connect(self, said: Connect) -> Connected:
        """Queue pairs for a peer, connected to its own."""
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
        return Connected(None, reason="it leaves its session")

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
        """Where regions lie, for a peer that is connected."""
        with self._lock:
            if said.channel not in self._served:
                return GrantsAnswer(False)
        return GrantsAnswer(True, tuple(self._granted(said)))

    def _granted(self, said: Wants) -> Sequence[Grant]:
        return [self.grants.grant(want) for want in said.wants]

    # --- the end ----------------------------------------------------------------------------------

    def peers(self) -> list[Owner]:
        """Who is connected, each once."""
        with self._lock:
            return list(
                {served.who.incarnation: served.who for served in self._served.values()}.values()
            )

    def hang_up(self, channel: bytes) -> None:
        """That peer needs its connection no more."""
        with self._lock:
            self._drop([channel])

    def forget(self, incarnation: bytes) -> None:
        """That peer has ended."""
        with self._lock:
            self._drop(
                [name for name, s in self._served.items() if s.who.incarnation == incarnation]
            )

    def cut_all(self) -> None:
        """Every peer has to connect anew."""
        with self._lock:
            self._drop(list(self._served))

    def _drop(self, names: list[bytes]) -> None:
        for name in names:
            served = self._served.pop(name, None)
            if served is not None:
                self._card.destroy(served.pairs)
        if not self._served:
            self.grants.nobody_knows()

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._served)

    def close(self) -> None:
        """End all of it. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop(list(self._served))
        self.grants.close()
        self._card.verbs.close(self._probe)
        self._card.verbs.close(self._queue)
