"""One process that takes part: its socket, its peers, its messages in and out.

Runs in: every process. Messages are handled on whichever thread holds the baton, one at a time.
Owns: the Router, the Baton, a table of peers.
Invariants: the first message on every pipe, in each direction that opened it, is a Hello; what
comes before is dropped and counted. Messages to one peer leave in the order of `send`; the route
to a peer is chosen once and never changes, so they arrive in that order.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

import msgspec

from monarch._src.net.baton import Baton, Waitable
from monarch._src.net.interrupt import uninterrupted
from monarch._src.version import VERSION
from monarch._src.wire.frames import NO_PAYLOAD, Buffer, FrameError, Payload, decode, encode
from monarch._src.wire.messages import PROTOCOL, AnyMessage, Hello, Message, Refused

log = logging.getLogger("monarch.net")
AT_ONCE = 1000

FAREWELL_S, FAREWELL_LIMIT_S = 0.05, 2.0

Handler = Callable[[str, AnyMessage, Payload], None]


class Peer(msgspec.Struct, eq=False):
    """Another node. `route` is None until messages can go out; they wait in `outbox` until then."""

    name: str
    route: bytes | None = None
    address: str = ""
    hello: Hello | None = None
    gone: bool = False
    outbox: list[list[Buffer]] = msgspec.field(default_factory=list[list[Buffer]])
    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)


def versions() -> dict[str, str]:
    """What must be equal on both sides for pickles to be understood."""
    python = ".".join(str(part) for part in sys.version_info[:3])
    return {"python": python, "monarch": VERSION, "os": sys.platform}


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
    ) -> None:
        self.name = name
        self.address = address
        self._handle = handle
        # Called when all was read; True from it asks for another look.
        self.after_drain: Callable[[], bool] | None = None
        self._hello = Hello(PROTOCOL, name, kind, os.getpid(), address, {}, mesh, rank)
        self._peers: dict[str, Peer] = {}
        self._by_route: dict[bytes, Peer] = {}
        self._lock = threading.Lock()
        self._to_self: deque[tuple[AnyMessage, Payload]] = deque()
        self.dropped = 0
        # ZeroMQ takes 10 ms to load; a client has them while its host agent starts.
        from monarch._src.net.router import Router

        self.router = Router(name.encode(), address)
        self.baton = Baton(self.router, self.drain, name)

    # --- peers --------------------------------------------------------------------------------

    def expect(self, name: str) -> None:
        """That node will connect to us; what is sent to it until then waits."""
        with self._lock:
            self._peers.setdefault(name, Peer(name))

    def link(self, name: str, address: str) -> None:
        """Connect to a node, unless there is a route to it already."""
        with self._lock:
            peer = self._peers.setdefault(name, Peer(name))
        with uninterrupted(), peer.lock:
            if peer.route is not None or peer.gone:
                return
            route = b">" + name.encode()
            self._by_route[route] = peer  # before an answer can come
            self.router.connect(route, address)
            peer.address = address
            if not self._hello.versions:
                self._hello.versions = versions()
            self.router.send(route, encode(self._hello))
            for frames in peer.outbox:
                self.router.send(route, frames)
            peer.outbox.clear()
            peer.route = route

    def knows(self, name: str) -> bool:
        """Whether messages to that node would go out or wait."""
        peer = self._peers.get(name)
        return name == self.name or (peer is not None and not peer.gone)

    def address_of(self, name: str) -> str:
        """Where a known node listens, as it said itself; empty if it has not."""
        peer = self._peers.get(name)
        return self.address if name == self.name else "" if peer is None else peer.address

    def forget(self, name: str) -> None:
        """That node is gone for good; what still waits for it is dropped."""
        peer = self._peers.get(name)
        if peer is None or peer.gone:
            return
        with peer.lock:
            peer.gone = True
            peer.outbox.clear()
            route, peer.route = peer.route, None
        if route is not None and route.startswith(b">"):
            self.router.disconnect(peer.address)

    def has_said_all(self, name: str, died_at: float) -> bool:
        """Whether everything that a node sent before it died can be received by now.

        `died_at`: when we heard of its death (seconds, `time.monotonic`). Exact for a peer that
        connected to us; the pipes that we opened don't tell, and get `FAREWELL_S`.
        """
        peer = self._peers.get(name)
        route = None if peer is None else peer.route
        waited = time.monotonic() - died_at
        if route is None or waited > FAREWELL_LIMIT_S:
            return True
        return waited > FAREWELL_S if route.startswith(b">") else not self.router.reachable(route)

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
        return self.router.send(route, frames)

    def forward(self, names: Iterable[str], message: Message, payload: Payload) -> None:
        """Send the same to many nodes that are known; one that is gone is no error."""
        frames = encode(message, payload)
        ready: list[bytes] = []
        for name in names:
            peer = self._peers.get(name)
            if peer is None:
                continue
            with peer.lock:
                if peer.route is not None:
                    ready.append(peer.route)
                elif not peer.gone:
                    peer.outbox.append(frames)
        self.router.send_all(ready, frames)

    def drain(self) -> None:
        """Handle what can be read now, `AT_ONCE` messages at most. For the holder of the baton."""
        while self._drained() and self.after_drain is not None and self.after_drain():
            pass

    def _drained(self) -> bool:
        """Handle messages; True if that was all, False if a flood keeps others from their turn."""
        receive = self.router.receive
        for _ in range(AT_ONCE):
            while self._to_self:
                self._deliver(self.name, *self._to_self.popleft())
            parts = receive()
            if parts is None:
                return True
            try:
                message, payload = decode(parts[1:])
            except FrameError as error:
                self.dropped += 1
                log.warning("dropped a malformed message from %r: %s", parts[0], error)
                continue
            peer = self._by_route.get(parts[0])
            kind = type(message)
            if kind is Hello:
                peer = self._met(parts[0], message)  # pyright: ignore[reportArgumentType]
                if peer is None:
                    continue  # refused
            if peer is None:
                self.dropped += 1
                log.warning("dropped a %s from %r, which said no hello", kind.__name__, parts[0])
                continue
            self._deliver(peer.name, message, payload)
        return False

    def _deliver(self, sender: str, message: AnyMessage, payload: Payload) -> None:
        try:
            self._handle(sender, message, payload)
        except Exception:
            log.exception("handling a %s from %s failed", type(message).__name__, sender)

    def _met(self, route: bytes, hello: Hello) -> Peer | None:
        why = _mismatch(hello)
        if why:
            log.error("refused %s: %s", hello.node, why)
            self.router.send(route, encode(Refused(why)))
            return None
        if route != hello.node.encode():
            log.error("refused %r, which calls itself %s", route, hello.node)
            return None
        with self._lock:
            peer = self._peers.setdefault(hello.node, Peer(hello.node))
        self._by_route[route] = peer
        with peer.lock:
            peer.hello = hello
            if not peer.address:
                peer.address = hello.address
            if peer.route is None and not peer.gone:
                for frames in peer.outbox:
                    self.router.send(route, frames)
                peer.outbox.clear()
                peer.route = route
        return peer

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the IO thread."""
        self.baton.start()

    def wait(
        self, what: Waitable, timeout_s: float | None = None, *, patient: bool = False
    ) -> bool:
        """Block until `what` is done; see Baton.wait."""
        return self.baton.wait(what, timeout_s, patient=patient)

    def close(self, linger_s: float = 0.0) -> None:
        """End the IO thread and close the socket. Idempotent."""
        self.baton.close()
        self.router.close(linger_s)


def _mismatch(hello: Hello) -> str:
    """Why we can't work with that peer, as a table of both sides; empty if we can."""
    mine = versions()
    rows = [("protocol", str(PROTOCOL), str(hello.protocol))]
    rows += [(key, mine[key], hello.versions.get(key, "?")) for key in ("monarch", "python")]
    wrong = {
        key
        for key, ours, theirs in rows
        if (ours != theirs if key != "python" else ours.split(".")[:2] != theirs.split(".")[:2])
    }
    if not wrong:
        return ""
    lines = [
        f"{hello.node} (pid {hello.pid}) speaks another version:",
        "           here      there",
    ]
    lines += [f"{k:10} {a:9} {b:9} {'<-- differs' if k in wrong else ''}" for k, a, b in rows]
    return "\n".join(lines)
