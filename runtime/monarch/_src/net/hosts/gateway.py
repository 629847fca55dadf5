"""The gateway of a site: relays messages between the nodes of its site and other sites.

Runs in: the client, on the receiving thread, and the host agent of a worker, on its only thread;
`pass_on` on any sending thread.
Owns: the Links. Each message on a link is a Relay with the unchanged frames of a message. A gateway
decodes only messages to its own node, and unpickles none.
Invariants: the queue for each site is bounded, and does not delay other sites: user code of this
process waits for room (`net.send_limits`), and each process of this host has an allowance
(`net.state.flow_control`). Messages from a link are handed on in order, outside the lock of the
links. The gateway sets the origin of an incoming Relay to the site of its link, and the sender of
an outgoing Relay to the node that sent it.

A link to a worker is named by the worker's site, the link to the client by the client's node.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import Notice, bounds_of
from monarch._src.net.hosts.links import Links
from monarch._src.net.node import AT_ONCE, Node
from monarch._src.net.remote_links import frames_within
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address
from monarch._src.net.state.flow_control import QUEUE, GatewayCredit
from monarch._src.net.state.link_actions import (
    Bounds,
    LinkState,
    PeerLeft,
    PeerLost,
    PeerRefused,
    Room,
)
from monarch._src.net.tunnel.state.tunnel import TUNNELLED, TunnelMessage
from monarch._src.rate_limited_log import Tally
from monarch._src.wire.frames import Buffer, FrameError, Payload, decode, encode
from monarch._src.wire.ids import AGENT, is_agent, is_tunnel
from monarch._src.wire.messages import (
    AnyMessage,
    Message,
    Relay,
    SiteRoom,
    Snapshot,
)

log = logging.getLogger("monarch.net")
REPORT = 1 << 18  # bytes
ENDS = (PeerLost, PeerLeft, PeerRefused)
# Takes sender, origin, receiver and frames; returns whether to hand the message in now.
Passes = Callable[[str, str, str, Sequence[Buffer]], bool]


class Gateway:
    """The links of a node to other sites, and the relaying of messages."""

    def __init__(
        self,
        node: Node,
        name: str,
        keys: Keys | None,
        audit: Audit,
        liveness_s: float,
        told: Callable[[str, Notice], None],
        *,
        admits: Callable[[str], bool] = lambda _: True,
        stranger: Callable[[str, AnyMessage], None] | None = None,
        unknown: Callable[[str], None] = lambda _: None,
        tunnel: Callable[[str, TunnelMessage, Payload], None] | None = None,
        observed: Callable[[str, Snapshot], None] | None = None,
    ) -> None:
        """Args:
        name: of this end of each link. told: takes notices of links, in order with messages.
        admits: whether to hand on the messages of that link; if not, `stranger` gets those that are
            for this node itself. unknown: called before a message goes to an unknown local node.
        tunnel: takes the messages of tunnels' links, which are not Relays.
        observed: takes requests for a snapshot from the holders of keys.
        """
        self._node = node
        self._told = told
        self._admits = admits
        self._stranger = stranger
        self._unknown = unknown
        self._tunnel = tunnel
        self._observed = observed
        self._audit = audit
        self._refusals: Tally[str] = Tally()  # by link; there are few
        self._liveness_s = liveness_s
        # On a worker: the node of its client, which is the name of the link to it.
        self.client = ""
        # Nodes of the client's site that belonged to a former client: no message goes to them.
        self.former: set[str] = set()
        # Other sites that may be dialled from here, with their addresses.
        self.dialable: dict[str, list[Address]] = {}
        # Returns False to hold back a message until its payload is here, and hands it in itself.
        self.passes: Passes = lambda _sender, _origin, _to, _frames: True
        self._posted: deque[Callable[[], None]] = deque()
        self.on_forked: Callable[[], None] = lambda: None  # for connections beside the links
        self._incoming: deque[tuple[str, Sequence[Buffer] | Notice, int]] = deque()
        bounds = bounds_of(liveness_s)
        self.links = Links(
            name, keys, audit,
            Bounds(bounds.patience_s, bounds.ping_s, None, queue=QUEUE, refuses=False),
            liveness_s / 6, self._deliver, self._on_notice,
        )  # fmt: skip
        self.has_keys = keys is not None
        self.links.on_missed = node.router.wake
        self._allowances = GatewayCredit()
        self._unreported: dict[str, int] = {}  # bytes of each link
        node.remote_links = self
        node.send_limits.has_room = self.has_room

    def prompt(self, liveness_s: float | None = None, *, tunnelled: bool = False) -> Bounds:
        """The bounds of a link to an agent, which must answer pings itself.

        `tunnelled`: the address is that of a tunnel, which may refuse connections for a while.
        """
        found = bounds_of(self._liveness_s if liveness_s is None else liveness_s, prompt=True)
        refused_s = None if tunnelled else found.refused_s
        return msgspec.structs.replace(found, queue=QUEUE, refuses=False, refused_s=refused_s)

    # --- out --------------------------------------------------------------------------------------

    def pass_on(self, sender: str, origin: str, to: str, site: str, frames: list[Buffer]) -> bool:
        """Send these frames to a node of that site; False if the site is gone."""
        if site == self._node.site:
            return self.hand_in(sender, origin, to, frames)
        sent = self._send_on(Relay(to, site, sender, origin), frames)
        if sender != self._node.name and not is_agent(sender):  # an agent never waits
            size = sum(map(len, frames))
            limit = self._allowances.passed(
                sender, site, size, lambda: not sent or self.has_room(site)
            )
            if limit is not None:
                self._allow(sender, site, limit)
        return sent

    def _send_on(self, relay: Relay, frames: list[Buffer]) -> bool:
        site = relay.site
        if not site and relay.to in self.former:
            return False
        parts = encode(relay, Payload(_flat(frames[0]), frames[1:]))
        link = site or self.client
        try:
            self.links.send(link, parts)
        except ConnectionError:
            addresses = self.dialable.pop(site, None)
            if not addresses:
                log.debug(
                    "%s has sent to %s of %s, which is out of reach", relay.sender, relay.to, site
                )
                return False
            self.links.dial(link, addresses[0], bounds=self.prompt())
            self.links.send(link, parts)
        return True

    def has_room(self, site: str) -> bool:
        """Whether the queue for that site has room; if not, `released` will wake its waiters."""
        return self.links.has_room(site or self.client)

    def _on_room(self, link: str) -> None:
        site = "" if link == self.client else link
        self._node.send_limits.released(site)
        for node, limit in self._allowances.room(site):
            self._allow(node, site, limit)

    def _allow(self, node: str, site: str, limit: int) -> None:
        if not self._node.send(node, SiteRoom(site, limit)):
            self._allowances.forget(node)

    def forgotten(self, node: str) -> None:
        """Forget the allowances of a node that is gone."""
        self._allowances.forget(node)

    def part_with(self, nodes: Iterable[str]) -> None:
        """On a worker: give up the client, and send no more messages to it or to these nodes."""
        self._on_room(self.client)
        self.client = ""
        self.former.update(nodes)

    def say(self, link: str, message: Message) -> None:
        """Send a message to the node at the other end of a link, if it is connected.

        That node need not be known to this one as a peer.
        """
        name, site = self._node.name, self._node.site
        relay = Relay(link, "", name, site) if site else Relay(AGENT, link, name, "")
        first, *rest = encode(message)
        try:
            self.links.send(link, encode(relay, Payload(_flat(first), rest)))
        except ConnectionError:
            pass  # the end of the link is reported by a notice

    def hand_in(self, sender: str, origin: str, to: str, frames: list[Buffer]) -> bool:
        """Send these frames to a node of this site; False if it is gone."""
        node = self._node
        if to == node.name:
            node.on_remote_frames(sender, origin, frames)
            return True
        if not node.knows(to):
            self._unknown(to)
        relay = Relay(to, node.site, sender, origin)
        return node.send(to, relay, Payload(_flat(frames[0]), frames[1:]))

    # --- in ---------------------------------------------------------------------------------------

    def _deliver(self, peer: str, frames: Sequence[Buffer], size: int) -> None:
        self._incoming.append((peer, frames, size))

    def _on_notice(self, peer: str, notice: Notice) -> None:
        self._incoming.append((peer, notice, -1))
        self._node.router.wake()  # a notice may result from a send, on any thread

    def post(self, work: Callable[[], None]) -> None:
        """Run a function on the thread that handles messages of links. Any thread."""
        self._posted.append(work)
        self._node.router.wake()

    def drain(self) -> None:
        """Handle messages, notices and posted functions. For the leader."""
        for _ in range(len(self._posted)):
            try:
                self._posted.popleft()()
            except Exception:  # the next function runs all the same
                log.exception("a function that was posted to the gateway failed")
        links = self.links
        if links.missed or time.monotonic() >= links.next_deadline():
            links.work()
        for _ in range(AT_ONCE):
            if not self._incoming:
                return
            peer, what, size = self._incoming.popleft()
            try:
                if isinstance(what, (Room, *ENDS)):
                    self._on_room(peer)
                    if not isinstance(what, Room):
                        self._unreported.pop(peer, None)
                if size < 0:
                    self._told(peer, what)  # pyright: ignore[reportArgumentType]
                else:
                    self._on_frames(peer, what)  # pyright: ignore[reportArgumentType]
            except Exception:  # must not affect the next message
                log.exception("handling a message or notice of %s failed", peer)
            finally:
                if size > 0:
                    self._handled(peer, size)
        self._node.router.wake()  # messages from pipes come first, then the rest

    def _handled(self, peer: str, size: int) -> None:
        """Report handled bytes in batches, which are small compared with the window."""
        handled = self._unreported.get(peer, 0) + size
        if handled >= REPORT:
            self.links.handled(peer, handled)
            handled = 0
        self._unreported[peer] = handled

    @property
    def is_pending(self) -> bool:
        """Whether `drain` has work although no descriptor is readable."""
        return self.links.missed or bool(self._incoming)

    def _on_frames(self, peer: str, frames: Sequence[Buffer]) -> None:
        try:
            message, payload = decode(frames)
            inner = frames_within(payload)  # raises for a payload in a segment
        except FrameError as error:
            self._refuse(peer, str(error))
            return
        if self._tunnel is not None and is_tunnel(peer):
            if isinstance(message, TUNNELLED):
                self._tunnel(peer, message, payload)
            else:
                self._refuse(peer, f"a {type(message).__name__} is not a message of a tunnel")
            return
        if type(message) is Snapshot and self._observed is not None:
            self._observed(peer, message)
            return
        if type(message) is not Relay:
            self._refuse(peer, f"a {type(message).__name__} cannot be relayed")
            return
        origin = "" if peer == self.client else peer
        if self._admits(peer):
            if message.site != self._node.site:
                self._refuse(peer, "it is for another site")
            else:
                self._on_relay(peer, message, origin, inner)
        elif self._stranger is not None and message.to == self._node.name:
            try:
                said, _ = decode(inner)
            except FrameError as error:
                self._refuse(peer, str(error))
                return
            self._stranger(peer, said)
        else:
            self._refuse(peer, "its sender does not hold this host")

    def _on_relay(self, peer: str, relay: Relay, origin: str, frames: list[Buffer]) -> None:
        try:
            passes = self.passes(relay.sender, origin, relay.to, frames)
        except FrameError as error:
            self._refuse(peer, str(error))
            return
        if passes:
            self.hand_in(relay.sender, origin, relay.to, frames)

    def _refuse(self, peer: str, why: str) -> None:
        self._audit.note("refused", why=why, node=peer)
        if number := self._refusals.note(peer):
            log.warning("dropped a message of %s: %s (%d by now)", peer, why, number)

    def reaches(self, link: str) -> bool:
        """Whether the link to that node is connected, as far as this host knows."""
        try:
            self.links.probe(link)
            return self.links.link_to(link).state is LinkState.UP
        except ConnectionError:
            return False

    def role_of(self, link: str) -> Role | None:
        """The role in which that node has dialled; None without keys."""
        return self.links.role_of(link) if self.has_keys else None

    def forked(self) -> None:
        """In a fork of this process: give up the links."""
        self.links.forked()
        self.on_forked()

    def close(self, why: str) -> None:
        """Say goodbye on every link. Idempotent."""
        self._node.remote_links = None
        self._node.send_limits.has_room = lambda _: True
        self.links.close(why)


def _flat(frame: Buffer) -> bytes | memoryview:
    return memoryview(frame) if isinstance(frame, bytearray) else frame
