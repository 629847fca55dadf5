"""The RDMA card of one process, for both sides of `ibverbs`; opened on first use.

Runs in: threads of the pool. Owns: the card, the server of queue pairs, a pidfd of every connected
peer on this host.
Invariants: without a card, or where it may not be used, nothing is opened and pyverbs is not
imported. A peer that has ended has no queue pair here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from monarch._src.config import settings
from monarch._src.rdma.handle import Owner
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.transports.ibverbs import Ask, IbverbsLink
from monarch._src.rdma.transports.local_peer import process_of
from monarch._src.rdma.verbs import sysfs
from monarch._src.rdma.verbs.card import Card
from monarch._src.rdma.verbs.protocol import Connect, Connected, Grants, Wants, decode, encode
from monarch._src.rdma.verbs.server import VerbsServer
from monarch._src.wire.messages import CONNECT, GRANT, HANG_UP


class Watch:
    """Notices the ends of peers: by a descriptor, or by asking the control plane."""

    def __init__(
        self,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        knows: Callable[[str], bool],
        later: Callable[[Callable[[], None]], bool],
    ) -> None:
        """`later`: runs a function on a thread that may block."""
        self.watch, self.unwatch, self.knows, self.later = watch, unwatch, knows, later


class Cards:
    """The card of this process, and both sides of its connections."""

    def __init__(self, regions: Regions, watch: Watch) -> None:
        self._regions = regions
        self._watch = watch
        self._lock = threading.Lock()
        self._card: Card | None = None
        self._server: VerbsServer | None = None
        self._ends: dict[bytes, int] = {}  # pidfds of connected peers, by incarnation
        self._closed = False

    def card(self) -> Card:
        """The card of this process. Raises TransportFailed."""
        with self._lock:
            if self._closed:
                raise TransportFailed("it is leaving its session")
            if settings().rdma_disable_ibverbs:
                raise TransportFailed("rdma_disable_ibverbs is True")
            if self._card is None:
                if not sysfs.present():
                    raise TransportFailed("no RDMA device in this kernel")
                self._card = Card()
            return self._card

    def link(
        self, owner: Owner, ask: Ask, tell: Callable[[int, bytes], object],
        gone: Callable[[], bool], deadline: float,
    ) -> IbverbsLink:  # fmt: skip
        """A connection to the memory of that process. Raises as IbverbsLink does."""
        return IbverbsLink(owner, self._regions.owner, self.card(), ask, tell, gone, deadline)

    # --- requests of peers ------------------------------------------------------------------------

    def answer(self, what: int, body: bytes) -> bytes:
        """The answer to a request of a peer. Raises ValueError if it is unreadable."""
        if what == CONNECT:
            return encode(self._connect(decode(body, Connect)))
        server = self._server
        if what == GRANT:
            said = decode(body, Wants)
            return encode(Grants(False) if server is None else server.grant(said))
        if what == HANG_UP and server is not None:
            server.hang_up(body)
        return b""

    def _connect(self, said: Connect) -> Connected:
        try:
            server = self._serving()
        except TransportFailed as error:
            return Connected(None, reason=error.why.reason, remedy=error.why.remedy)
        self._sweep(server)
        answer = server.connect(said)
        if answer.ends is not None:
            self._watch_peer(server, said.who)
        return answer

    def _serving(self) -> VerbsServer:
        card = self.card()
        with self._lock:
            if self._server is None:
                if self._closed:
                    raise TransportFailed("it is leaving its session")
                self._server = VerbsServer(card, self._regions)
            return self._server

    def _watch_peer(self, server: VerbsServer, who: Owner) -> None:
        """Watch a peer on this host for its end."""
        key = who.incarnation
        with self._lock:
            if key in self._ends or self._closed:
                return
            end = process_of(who)
            if end is None:
                return
            self._ends[key] = end

        def ended() -> None:
            with self._lock:
                if self._ends.get(key) != end:
                    return
                del self._ends[key]
            self._watch.unwatch(end)
            os.close(end)
            self._watch.later(lambda: server.forget(key))

        self._watch.watch(end, ended)

    def _sweep(self, server: VerbsServer) -> None:
        """Forget peers on other hosts that the control plane no longer knows."""
        for who in server.peers():
            if who.incarnation not in self._ends and not self._watch.knows(who.node):
                server.forget(who.incarnation)

    @property
    def server(self) -> VerbsServer:
        """The server of local memory. Raises TransportFailed."""
        return self._serving()

    @property
    def connections(self) -> int:
        """The number of connections from peers."""
        return 0 if self._server is None else self._server.connections

    def end_serving(self) -> None:
        """Destroy the connections of all peers."""
        with self._lock:
            self._closed = True
            server, ends = self._server, list(self._ends.values())
            self._ends.clear()
        for end in ends:
            self._watch.unwatch(end)
            os.close(end)
        if server is not None:
            server.close()

    def close(self) -> None:
        """Close the card. No link of this process may be open. Idempotent."""
        self.end_serving()
        card, self._card = self._card, None
        if card is not None:
            card.close()
