"""The messaging of one process: its socket, its peers, and its messages in both directions.

A node reaches each node of its host by a pipe, and the nodes of another site through a *gateway*,
which takes a Relay with the frames. The gateway is the agent of a worker host, or the client on the
client's host. A peer stores its route once it is known, so that sending needs no lookup.

Runs in: every process. The receiving thread (`net.local.leader`) handles messages one at a time.
Owns: the Router, the ReceiveLeader, a table of peers.
Invariants: the first message that the opener of a pipe sends on it is a Hello; messages before it
are dropped and counted. Messages to one peer leave in the order of `send`. The route to a peer is
chosen once and never changes, so they arrive in that order.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.local.leader import ReceiveLeader
from monarch._src.net.local.router import Router
from monarch._src.net.local.waitable import Waitable
from monarch._src.net.peers import VERSIONS, Peer, mismatch_with
from monarch._src.net.remote_links import REMOTE, RemoteLinks, frames_within
from monarch._src.net.send_limits import SendLimits
from monarch._src.net.session_directory import at_site, site_and_pipe
from monarch._src.rate_limited_log import EACH, Tally
from monarch._src.wire.frames import (
    NO_PAYLOAD,
    Buffer,
    FrameError,
    Payload,
    Placed,
    decode,
    encode,
)
from monarch._src.wire.ids import AGENT, agent_at
from monarch._src.wire.messages import PROTOCOL, AnyMessage, Hello, Message, Refused, Relay
from monarch._src.wire.stream import StreamError

log = logging.getLogger("monarch.net")
AT_ONCE = 1000  # messages in a row, before other work of the thread has its turn
HANDLING_FAILED = "handling a %s from %s failed"
FAREWELL_LIMIT_S = 2.0

Handler = Callable[[str, AnyMessage, Payload], None]


class Node:
    """The messaging of one process."""

    def __init__(
        self,
        name: str,
        kind: str,
        address: str,
        handle: Handler,
        *,
        mesh: int = 0,
        rank: int = -1,
        site: str = "",
    ) -> None:
        """A node; without an address it has no name yet, and `begin` must follow.

        Args:
            address: where the node listens. site: the site of this host; empty for the client's.
        """
        # The node that relays to other sites, and its address; unused if this node is a gateway.
        self.gateway, self.gateway_pipe = "", ""
        self.remote_links: RemoteLinks | None = None
        self._handle = handle
        # Called when a node is gone for good, and when a node has got another name.
        self.on_forget: Callable[[str], None] | None = None
        self.on_alias: Callable[[str, str], None] | None = None
        # Called when a known node breaks the protocol: the rest of its messages is lost.
        self.on_broken: Callable[[str, StreamError], None] | None = None
        # Called when all messages were read; if it returns True, the node reads once more.
        self.after_drain: Callable[[], bool] | None = None
        self._kind = kind
        self._peers: dict[str, Peer] = {}
        self._by_route: dict[bytes, Peer] = {}
        self._lock = GuardedLock()
        self._to_self: deque[tuple[AnyMessage, Payload]] = deque()
        self.dropped = 0
        # Whether this process is a fork of the node's process; `on_fork` runs there without locks.
        self.is_fork = False
        self.on_fork: Callable[[], None] | None = None
        self._refusals: Tally[str] = Tally()
        self.router = Router()
        self.leader = ReceiveLeader(self.router, self.drain)
        self.router.on_full = self.leader.receive_now
        self.router.on_broken = self._on_broken
        self.send_limits = SendLimits(self.leader.wait)
        if address:
            self.begin(name, address, mesh=mesh, rank=rank, site=site)

    def begin(
        self, name: str, address: str, *, mesh: int = 0, rank: int = -1, site: str = ""
    ) -> None:
        """Take that name, and listen at that address."""
        self.name = name
        self.site = site
        self.address = at_site(site, address)  # the form that peers are given
        self._hello = Hello(
            PROTOCOL, name, self._kind, os.getpid(), self.address, VERSIONS, mesh, rank
        )
        self.router.open(name.encode(), address)
        if not _nodes:  # a process without a node pays for no hook in its forks
            os.register_at_fork(after_in_child=_forked)
        _nodes.append(weakref.ref(self))

    # --- peers --------------------------------------------------------------------------------

    def expect(self, name: str, site: str | None = None) -> None:
        """Register a node that will connect to this one; messages to it wait until then.

        `site`: the site of that node, if it is another one.
        """
        with self._lock:
            peer = self._peer(name)
            if site is not None and peer.route is None:
                peer.site = site

    def _peer(self, name: str) -> Peer:
        """The peer of that name, made if it is new. Under the lock."""
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = Peer(name, self.router.send, self.site)
        return peer

    def link(self, name: str, address: str) -> None:
        """Connect to a node of this host, unless there is a route to it already."""
        with self._lock:
            peer = self._peer(name)
        with peer.lock:
            if peer.route is not None or peer.gone:
                return
            route = b">" + name.encode()
            self._by_route[route] = peer  # before an answer can arrive
            # One write for all queued messages, so that the peer wakes once.
            self.router.connect(route, address, [encode(self._hello), *peer.outbox])
            peer.address = address
            peer.outbox.clear()
            peer.route = route

    def link_to(self, name: str, address: str) -> None:
        """Ensure a route to a node of any site, by the address that it announced."""
        site, pipe = site_and_pipe(address)
        if site == self.site:
            self.link(name, pipe)
        else:
            self.link_remote(name, site)

    def link_remote(self, name: str, site: str) -> None:
        """Ensure a route to a node of another site."""
        with self._lock:
            peer = self._peer(name)
        with peer.lock:
            if peer.route is not None or peer.gone:
                return
            self._route_through_gateway(peer, site)
            peer.transmit(REMOTE, encode(self._hello))
            self._empty_outbox(peer, REMOTE)

    def _route_through_gateway(self, peer: Peer, site: str) -> None:
        peer.site = site
        to = AGENT if peer.name == agent_at(site) else peer.name
        if self.remote_links is None and self.gateway_pipe:
            self.link(self.gateway, self.gateway_pipe)
        peer.transmit = cast(Any, partial(self._send_remote, to, site))

    def _empty_outbox(self, peer: Peer, route: bytes) -> None:
        if route == REMOTE:
            for frames in peer.outbox:
                peer.transmit(route, frames)
        elif peer.outbox:
            self.router.send_in_row(route, peer.outbox)
        peer.outbox.clear()
        peer.route = route

    def _send_remote(self, to: str, site: str, _route: bytes, frames: Sequence[Buffer]) -> bool:
        if self.remote_links is not None:
            return self.remote_links.pass_on(self.name, self.site, to, site, list(frames))
        first = cast("bytes | memoryview", frames[0])
        self.send_limits.spent(site, sum(map(len, frames)))
        return self.send(self.gateway, Relay(to, site), Payload(first, frames[1:]))

    def site_of(self, name: str) -> str:
        """The site of a node; the site of this host if the node is unknown."""
        peer = self._peers.get(name)
        return self.site if peer is None else peer.site

    def link_as(self, alias: str, name: str, address: str) -> None:
        """Connect to a node that was expected under an alias, which stays valid for `send`.

        Queued messages are sent. Without effect if no node was expected under that alias.
        """
        with self._lock:
            peer = self._peers.get(alias)
            if peer is None or peer.gone:
                return
            known = self._peers.setdefault(name, peer)
            self._peers[alias] = known
        peer.name = name
        if self.on_alias is not None:
            self.on_alias(alias, name)
        self.link_to(name, address)
        if known is not peer:  # it was known by both names: senders may still hold `peer`
            with peer.lock:
                peer.transmit, peer.site = known.transmit, known.site
                self._empty_outbox(peer, known.route or b"")
                peer.route, peer.gone = known.route, known.gone

    def knows(self, name: str) -> bool:
        """Whether messages to that node would be sent or queued."""
        peer = self._peers.get(name)
        return name == self.name or (peer is not None and not peer.gone)

    def has_process(self, pid: int) -> bool:
        """Whether a node of this host has said that this is its process. On any thread."""
        with self._lock:
            return any(
                peer.hello is not None and peer.hello.pid == pid
                for peer in self._peers.values()
                if not peer.gone and peer.route not in (None, REMOTE)
            )

    def address_of(self, name: str) -> str:
        """The address that a known node has announced; empty if it has announced none."""
        peer = self._peers.get(name)
        return self.address if name == self.name else "" if peer is None else peer.address

    def forget(self, name: str) -> None:
        """Mark a node as gone for good, and drop the messages queued for it."""
        peer = self._peers.get(name)
        if peer is not None and not peer.gone:
            with peer.lock:
                peer.gone = True
                peer.outbox.clear()
                route, peer.route = peer.route, None
            if route is not None and route.startswith(b">"):
                self.router.disconnect(peer.address)
        if self.on_forget is not None:  # relays may have sent to it for this node
            self.on_forget(name)

    def has_received_all(self, name: str, died_at: float) -> bool:
        """Whether every message that a node sent before it died has been received.

        `died_at`: when its death was reported here (seconds, `time.monotonic`). Another process,
        such as a child of that node, may hold the pipe open: then this is True after
        `FAREWELL_LIMIT_S`.
        """
        peer = self._peers.get(name)
        route = None if peer is None else peer.route
        waited = time.monotonic() - died_at
        if route is None or route == REMOTE or waited > FAREWELL_LIMIT_S:
            return True  # on another site, the report of a death follows the node's messages
        return not self.router.reachable(route)

    def drop(self, name: str) -> None:
        """Forget a node and free its entry."""
        self.forget(name)
        with self._lock:
            peer = self._peers.pop(name, None)
        if peer is not None:
            self._by_route.pop(name.encode(), None)
            self._by_route.pop(b">" + name.encode(), None)

    # --- messages -----------------------------------------------------------------------------

    def send(self, name: str, message: Message, payload: Payload = NO_PAYLOAD) -> bool:
        """Send to a known node, in order and without blocking; False if it is gone or unknown."""
        if payload.buffers and isinstance(payload.buffers[0], Placed):
            return self._send_placed(name, message, payload, payload.buffers[0])
        if name == self.name:  # a call between actors of this process
            self._to_self.append((cast(AnyMessage, message), payload.own()))
            self.router.wake()
            self.leader.receive_now()
            return True
        peer = self._peers.get(name)
        if peer is None or peer.gone:
            return False
        frames = encode(message, payload)
        route = peer.route
        if route is None:
            with peer.lock:
                if peer.gone:
                    return False
                route = peer.route
                if route is None:
                    peer.outbox.append(frames)
                    return True
        return peer.transmit(route, frames)

    def is_behind(self, name: str) -> bool:
        """Whether messages to a known node wait because it, or the link to its host, is slow."""
        peer = self._peers.get(name)
        if peer is None or peer.gone or peer.route is None:
            return False
        if peer.route == REMOTE:
            return not self.send_limits.has_room(peer.site)
        return self.router.is_behind(peer.route)

    def _send_placed(self, name: str, message: Message, payload: Payload, placed: Placed) -> bool:
        """Send a message whose large parts are in a segment that the receiver may map."""
        site = self.site_of(name)
        is_far = site != self.site
        lent = placed.serve(name, site) if is_far else placed.lend(name, message)
        if lent is None:
            return Node.send(self, name, message, placed.carried(payload))
        if Node.send(self, name, message, Payload(payload.body, (lent,))):
            return True
        if is_far:
            placed.unserve(lent)
        else:
            placed.unsent(lent, name, message)
        return False

    def divert(self, send: Callable[[str, Message, Payload], bool] | None) -> None:
        """Replace `send` and `forward` by this function; None restores them. For injected faults.

        Replacing the methods costs nothing while no fault is injected.
        """
        for method in ("send", "forward"):
            self.__dict__.pop(method, None)
        if send is None:
            return

        def diverted(name: str, message: Message, payload: Payload = NO_PAYLOAD) -> bool:
            return send(name, message, payload)

        def one_by_one(names: Iterable[str], *_: object) -> list[str]:
            return list(names)

        self.__dict__.update(send=diverted, forward=one_by_one)

    def forward(self, names: Iterable[str], message: Message, payload: Payload) -> Sequence[str]:
        """Send the same message to many other nodes, as `send` to each.

        Returns:
            The nodes that are gone or unknown.
        """
        if payload.buffers and isinstance(payload.buffers[0], Placed):
            placed = payload.buffers[0]
            lent = placed.lend("", message)
            payload = placed.carried(payload) if lent is None else Payload(payload.body, (lent,))
        frames = encode(message, payload)
        missed: list[str] = []
        near: dict[bytes, str] = {}
        peers = self._peers
        for name in names:
            peer = peers.get(name)
            if peer is None or peer.gone:
                missed.append(name)
                continue
            route = peer.route
            if route is None:
                with peer.lock:
                    route = peer.route
                    if route is None:
                        if peer.gone:
                            missed.append(name)
                        else:
                            peer.outbox.append(frames)
                        continue
            if route != REMOTE:
                near[route] = name
            elif not peer.transmit(REMOTE, frames):
                missed.append(name)
        if not near:
            return missed
        return [*missed, *map(near.__getitem__, self.router.send_all(near, frames))]

    def drain(self) -> None:
        """Handle the messages that can be read now. On the receiving thread.

        Returns after `AT_ONCE` messages, so that a flood does not starve the thread's other work.
        """
        receive, to_self = self.router.receive, self._to_self
        while True:
            self.router.clear_wake_ups()
            if self.remote_links is not None:
                self.remote_links.drain()
            for _ in range(AT_ONCE):
                while to_self:
                    self._deliver(self.name, *to_self.popleft())
                parts = receive()
                if parts is None:
                    break
                self._on_frames(parts)
            else:
                return
            if self.after_drain is None or not self.after_drain():
                return

    def _on_frames(self, parts: list[Any]) -> None:
        """Decode and handle a message."""
        route = parts.pop(0)
        try:
            message, payload = decode(parts)
        except FrameError as error:
            self._refuse("dropped a malformed message from %r: %s", route, error)
            return
        peer = self._by_route.get(route)
        if peer is None or type(message) is Hello:
            if type(message) is not Hello:
                kind = type(message).__name__
                self._refuse("dropped a %s from %r, which said no hello", kind, route)
                return
            peer = self._on_hello(route, message)
            if peer is None:
                return
        try:
            self._handle(peer.name, message, payload)
        except Exception:
            log.exception(HANDLING_FAILED, type(message).__name__, peer.name)

    def _refuse(self, why: str, *facts: object, level: int = logging.WARNING) -> None:
        """Count a dropped message, and log it at a limited rate."""
        self.dropped += 1
        if number := self._refusals.note(why):
            log.log(level, "%s%s", why % facts, f" ({number} like it)" if number > EACH else "")

    def _on_broken(self, route: bytes, error: StreamError) -> None:
        peer = self._by_route.get(route)
        if peer is not None and self.on_broken is not None:
            self.on_broken(peer.name, error)

    # --- other sites --------------------------------------------------------------------------

    def on_relay(self, peer: str, message: Relay, payload: Payload) -> None:
        """Handle a Relay to a node of another site, or from such a node."""
        frames = frames_within(payload)
        if self.remote_links is not None:
            self.remote_links.pass_on(peer, self.site, message.to, message.site, frames)
        elif peer == self.gateway:
            self.on_remote_frames(message.sender, message.origin, frames)
        else:
            self._refuse("dropped a Relay from %s, which is no gateway", peer)

    def on_remote_frames(self, sender: str, origin: str, frames: Sequence[Buffer]) -> None:
        """Handle a message of a node of another site. The caller trusts the gateway it came by."""
        try:
            message, payload = decode([bytes(frames[0]), *frames[1:]])  # as from a pipe
        except FrameError as error:
            self._refuse("dropped a malformed message from %s of %s: %s", sender, origin, error)
            return
        self.deliver_remote(sender, origin, message, payload)

    def deliver_remote(
        self, sender: str, origin: str, message: AnyMessage, payload: Payload
    ) -> None:
        """Handle a message of a node of another site."""
        name = agent_at(origin) if sender == AGENT else sender
        peer = self._peers.get(name)
        if peer is None or (peer.route is None and not peer.gone):
            with self._lock:
                peer = self._peer(name)
            with peer.lock:
                if peer.route is None and not peer.gone:
                    self._route_through_gateway(peer, origin)
                    self._empty_outbox(peer, REMOTE)
        self._deliver(name, message, payload)

    def remote_nodes(self, site: str | None = None) -> list[str]:
        """The known nodes of that other site, or of all other sites."""
        with self._lock:
            peers = list(self._peers.items())
        return [
            name
            for name, peer in peers
            if peer.route == REMOTE and (site is None or peer.site == site)
        ]

    def unconnected(self) -> list[str]:
        """The nodes that are expected and have not connected."""
        with self._lock:
            return [name for name, peer in self._peers.items() if peer.route is None]

    def _deliver(self, sender: str, message: AnyMessage, payload: Payload) -> None:
        try:
            self._handle(sender, message, payload)
        except Exception:
            log.exception(HANDLING_FAILED, type(message).__name__, sender)

    def _on_hello(self, route: bytes, hello: Hello) -> Peer | None:
        why = mismatch_with(hello)
        if why:
            self._refuse("refused %s: %s", hello.node, why, level=logging.ERROR)
            if not self.router.is_behind(route):  # a peer that does not read must cost no memory
                self.router.send(route, encode(Refused(why)))
            return None
        if route != hello.node.encode():
            why = "refused %r, which calls itself %s"
            self._refuse(why, route, hello.node, level=logging.ERROR)
            return None
        with self._lock:
            peer = self._peer(hello.node)
        self._by_route[route] = peer
        with peer.lock:
            peer.hello = hello
            if not peer.address:
                peer.address = hello.address
            if peer.route is None and not peer.gone:
                self._empty_outbox(peer, route)
        return peer

    # --- lifetime -----------------------------------------------------------------------------

    def forked(self) -> None:
        """In a fork of this process: give up the name and the pipes."""
        self.is_fork = True
        self.leader.forked()
        self.router.forked()
        if self.on_fork is not None:
            self.on_fork()
        if self.remote_links is not None:
            self.remote_links.forked()
            self.remote_links = None

    def start(self, first_check_s: float | None = None) -> None:
        """Start the IO thread; see `ReceiveLeader.start`."""
        self.leader.start(self.name, first_check_s)

    def wait(
        self, waitable: Waitable, timeout_s: float | None = None, *, idle: bool = False
    ) -> bool:
        """Block until `waitable` is done; see `ReceiveLeader.wait`."""
        return self.leader.wait(waitable, timeout_s, idle=idle)

    def close(self, linger_s: float = 0.0) -> None:
        """End the IO thread and close the socket. Idempotent."""
        self.leader.close()
        self.router.close(linger_s)


_nodes: list[weakref.ref[Node]] = []  # of this process, past ones too; rarely more than one


def _forked() -> None:
    for ref in _nodes:
        node = ref()
        if node is not None:
            node.forked()
