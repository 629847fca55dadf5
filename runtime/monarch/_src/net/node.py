"""One process that takes part: its socket, its peers, its messages in and out.

Nodes of this host are reached by a pipe each; those of another site through a *gateway*, which
takes a Relay with the frames: the agent of a worker host, the client where that runs. Which of the
two, a peer knows once its way has been looked up, so that a message asks nothing.

Runs in: every process. Messages are handled on whichever thread holds the baton, one at a time.
Owns: the Router, the Baton, a table of peers.
Invariants: the first message on every pipe, in each direction that opened it, is a Hello; what
comes before is dropped and counted. Messages to one peer leave in the order of `send`; the route
to a peer is chosen once and never changes, so they arrive in that order.
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
AT_ONCE = 1000
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
        """Without an address it is nobody yet, and `begin` is to follow.

        Args:
            address: where it listens. site: of this host; empty where the client runs.
        """
        # The node that takes what goes to other sites, and where it listens; or we do ourselves.
        self.gateway, self.gateway_pipe = "", ""
        self.outside: RemoteLinks | None = None
        self._handle = handle
        # Told of a node that is gone for good, and of one that is known by another name now.
        self.on_forget: Callable[[str], None] | None = None
        self.on_alias: Callable[[str, str], None] | None = None
        # Told of one that has said hello, and then what is no message: what else it said is lost.
        self.on_broken: Callable[[str, StreamError], None] | None = None
        # Called when all was read; True from it asks for another look.
        self.after_drain: Callable[[], bool] | None = None
        self._kind = kind
        self._peers: dict[str, Peer] = {}
        self._by_route: dict[bytes, Peer] = {}
        self._lock = GuardedLock()
        self._to_self: deque[tuple[AnyMessage, Payload]] = deque()
        self.dropped = 0
        # Whether this is a fork of the process that is this node; called in one, with no lock.
        self.is_fork = False
        self.on_fork: Callable[[], None] | None = None
        self._refusals: Tally[str] = Tally()
        self.router = Router()
        self.baton = ReceiveLeader(self.router, self.drain)
        self.router.on_full = self.baton.receive_now
        self.router.on_broken = self._broken
        self.rooms = SendLimits(self.baton.wait)
        if address:
            self.begin(name, address, mesh=mesh, rank=rank, site=site)

    def begin(
        self, name: str, address: str, *, mesh: int = 0, rank: int = -1, site: str = ""
    ) -> None:
        """Be the node of that name, and listen at that address."""
        self.name = name
        self.site = site
        self.address = at_site(site, address)  # as others are told
        self._hello = Hello(
            PROTOCOL, name, self._kind, os.getpid(), self.address, VERSIONS, mesh, rank
        )
        self.router.open(name.encode(), address)
        if not _nodes:  # a process that is no node pays for no hook in its forks
            os.register_at_fork(after_in_child=_forked)
        _nodes.append(weakref.ref(self))

    # --- peers --------------------------------------------------------------------------------

    def expect(self, name: str, site: str | None = None) -> None:
        """That node will connect to us; what is sent to it until then waits.

        `site`: where it is to be, if not here.
        """
        with self._lock:
            peer = self._peer(name)
            if site is not None and peer.route is None:
                peer.site = site

    def _peer(self, name: str) -> Peer:
        """That node, known from now on. Under the lock."""
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
            self._by_route[route] = peer  # before an answer can come
            # Whoever is there is woken once for all that it is to know.
            self.router.connect(route, address, [encode(self._hello), *peer.outbox])
            peer.address = address
            peer.outbox.clear()
            peer.route = route

    def reach(self, name: str, told: str) -> None:
        """Have a route to a node, by the address that it has told; as `link`."""
        site, pipe = site_and_pipe(told)
        if site == self.site:
            self.link(name, pipe)
        else:
            self.link_far(name, site)

    def link_far(self, name: str, site: str) -> None:
        """Have a route to a node of another site, unless there is one already."""
        with self._lock:
            peer = self._peer(name)
        with peer.lock:
            if peer.route is not None or peer.gone:
                return
            self._send_far_from_now_on(peer, site)
            peer.transmit(REMOTE, encode(self._hello))
            self._empty_outbox(peer, REMOTE)

    def _send_far_from_now_on(self, peer: Peer, site: str) -> None:
        peer.site = site
        to = AGENT if peer.name == agent_at(site) else peer.name
        if self.outside is None and self.gateway_pipe:
            self.link(self.gateway, self.gateway_pipe)
        peer.transmit = cast(Any, partial(self._send_far, to, site))

    def _empty_outbox(self, peer: Peer, route: bytes) -> None:
        if route == REMOTE:
            for frames in peer.outbox:
                peer.transmit(route, frames)
        elif peer.outbox:
            self.router.send_in_row(route, peer.outbox)
        peer.outbox.clear()
        peer.route = route

    def _send_far(self, to: str, site: str, _route: bytes, frames: Sequence[Buffer]) -> bool:
        if self.outside is not None:
            return self.outside.pass_on(self.name, self.site, to, site, list(frames))
        first = cast("bytes | memoryview", frames[0])
        self.rooms.gave(site, sum(map(len, frames)))
        return self.send(self.gateway, Relay(to, site), Payload(first, frames[1:]))

    def site_of(self, name: str) -> str:
        """On which site a node is; this one's if it is not known."""
        peer = self._peers.get(name)
        return self.site if peer is None else peer.site

    def link_as(self, alias: str, name: str, address: str) -> None:
        """Connect to a node that was expected under another name, by which it can still be sent to.

        What waited for it goes out. Without effect if nothing was expected under that name.
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
        self.reach(name, address)
        if known is not peer:  # there was a route already; who has looked up `peer` takes it too
            with peer.lock:
                peer.transmit, peer.site = known.transmit, known.site
                self._empty_outbox(peer, known.route or b"")
                peer.route, peer.gone = known.route, known.gone

    def knows(self, name: str) -> bool:
        """Whether messages to that node would go out or wait."""
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
        """Where a known node listens, as it said itself; empty if it has not."""
        peer = self._peers.get(name)
        return self.address if name == self.name else "" if peer is None else peer.address

    def forget(self, name: str) -> None:
        """That node is gone for good; what still waits for it is dropped."""
        peer = self._peers.get(name)
        if peer is not None and not peer.gone:
            with peer.lock:
                peer.gone = True
                peer.outbox.clear()
                route, peer.route = peer.route, None
            if route is not None and route.startswith(b">"):
                self.router.disconnect(peer.address)
        if self.on_forget is not None:  # others may have sent to it in our name
            self.on_forget(name)

    def has_said_all(self, name: str, died_at: float) -> bool:
        """Whether everything that a node sent before it died can be received by now.

        `died_at`: when we heard of its death (seconds, `time.monotonic`). Who holds its pipe open
        beyond that, a program that it has started perhaps, is not waited for long.
        """
        peer = self._peers.get(name)
        route = None if peer is None else peer.route
        waited = time.monotonic() - died_at
        if route is None or route == REMOTE or waited > FAREWELL_LIMIT_S:
            return True  # what tells of ends on another site comes behind what was said there
        return not self.router.reachable(route)

    def drop(self, name: str) -> None:
        """Forget that a node ever was, so that its name costs nothing."""
        self.forget(name)
        with self._lock:
            peer = self._peers.pop(name, None)
        if peer is not None:
            self._by_route.pop(name.encode(), None)
            self._by_route.pop(b">" + name.encode(), None)

    # --- messages -----------------------------------------------------------------------------

    def send(self, name: str, message: Message, payload: Payload = NO_PAYLOAD) -> bool:
        """Send to a known node, in order, without blocking; False if it is gone or unknown."""
        if payload.buffers and isinstance(payload.buffers[0], Placed):
            return self._lend(name, message, payload, payload.buffers[0])
        if name == self.name:  # an actor that calls its neighbour, or itself
            self._to_self.append((cast(AnyMessage, message), payload.own()))
            self.router.wake()
            self.baton.receive_now()
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

    def _lend(self, name: str, message: Message, payload: Payload, placed: Placed) -> bool:
        """Send a message whose large parts lie in a segment, for its receiver to use."""
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
        """Have `send` called in place of ours, until it is None. For injected faults.

        It takes the place of the methods, so that sending costs nothing while nobody does this.
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
        """Send the same to many other nodes, as `send` to each.

        Returns:
            Those that are gone or unknown, which is no error.
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
        """Handle what can be read now, `AT_ONCE` messages at most. For the holder of the baton."""
        receive, to_self = self.router.receive, self._to_self
        while True:
            self.router.take_wake_ups()
            if self.outside is not None:
                self.outside.drain()
            for _ in range(AT_ONCE):
                while to_self:
                    self._deliver(self.name, *to_self.popleft())
                parts = receive()
                if parts is None:
                    break
                self._take(parts)
            else:
                return  # a flood must not keep others from their turn
            if self.after_drain is None or not self.after_drain():
                return

    def _take(self, parts: list[Any]) -> None:
        """Handle what was received."""
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
            peer = self._met(route, message)
            if peer is None:
                return
        try:
            self._handle(peer.name, message, payload)
        except Exception:
            log.exception(HANDLING_FAILED, type(message).__name__, peer.name)

    def _refuse(self, why: str, *facts: object, level: int = logging.WARNING) -> None:
        """Count what is not handled, and log it unless there was much of it."""
        self.dropped += 1
        if number := self._refusals.note(why):
            log.log(level, "%s%s", why % facts, f" ({number} like it)" if number > EACH else "")

    def _broken(self, route: bytes, error: StreamError) -> None:
        peer = self._by_route.get(route)
        if peer is not None and self.on_broken is not None:
            self.on_broken(peer.name, error)

    # --- other sites --------------------------------------------------------------------------

    def relayed(self, peer: str, message: Relay, payload: Payload) -> None:
        """A Relay came: for a node of another site, or from one."""
        frames = frames_within(payload)
        if self.outside is not None:
            self.outside.pass_on(peer, self.site, message.to, message.site, frames)
        elif peer == self.gateway:
            self.came_from_afar(message.sender, message.origin, frames)
        else:
            self._refuse("dropped a Relay from %s, which is no gateway", peer)

    def came_from_afar(self, sender: str, origin: str, frames: Sequence[Buffer]) -> None:
        """A message of a node of another site came, through who may be believed in that."""
        try:
            message, payload = decode([bytes(frames[0]), *frames[1:]])  # as what comes by a pipe
        except FrameError as error:
            self._refuse("dropped a malformed message from %s of %s: %s", sender, origin, error)
            return
        self.deliver_from_afar(sender, origin, message, payload)

    def deliver_from_afar(
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
                    self._send_far_from_now_on(peer, origin)
                    self._empty_outbox(peer, REMOTE)
        self._deliver(name, message, payload)

    def far_nodes(self, site: str | None = None) -> list[str]:
        """The nodes of that other site that are known; of all others if None."""
        with self._lock:
            peers = list(self._peers.items())
        return [
            name
            for name, peer in peers
            if peer.route == REMOTE and (site is None or peer.site == site)
        ]

    def waiting(self) -> list[str]:
        """The nodes that are expected and have not come."""
        with self._lock:
            return [name for name, peer in self._peers.items() if peer.route is None]

    def _deliver(self, sender: str, message: AnyMessage, payload: Payload) -> None:
        try:
            self._handle(sender, message, payload)
        except Exception:
            log.exception(HANDLING_FAILED, type(message).__name__, sender)

    def _met(self, route: bytes, hello: Hello) -> Peer | None:
        why = mismatch_with(hello)
        if why:
            self._refuse("refused %s: %s", hello.node, why, level=logging.ERROR)
            if not self.router.is_behind(route):  # or who does not read would cost memory
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

    # --- life ---------------------------------------------------------------------------------

    def forked(self) -> None:
        """This is a fork of the process that the node is: it is nobody, and has no pipes."""
        self.is_fork = True
        self.baton.forked()
        self.router.forked()
        if self.on_fork is not None:
            self.on_fork()
        if self.outside is not None:
            self.outside.forked()
            self.outside = None

    def start(self, first_look_s: float | None = None) -> None:
        """Start the IO thread; see Baton.start."""
        self.baton.start(self.name, first_look_s)

    def wait(
        self, what: Waitable, timeout_s: float | None = None, *, patient: bool = False
    ) -> bool:
        """Block until `what` is done; see Baton.wait."""
        return self.baton.wait(what, timeout_s, patient=patient)

    def close(self, linger_s: float = 0.0) -> None:
        """End the IO thread and close the socket. Idempotent."""
        self.baton.close()
        self.router.close(linger_s)


_nodes: list[weakref.ref[Node]] = []  # that this process is, or has been: few ever are two


def _forked() -> None:
    for ref in _nodes:
        node = ref()
        if node is not None:
            node.forked()
