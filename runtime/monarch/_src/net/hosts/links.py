"""Links of one process to other hosts: TCP, CURVE, and the sessions of `net.state.link`.

Runs in: any process that listens or dials beyond its host, on the calling thread, one at a time.
Owns: a ZeroMQ context, the listener with its authenticator, and the ends of outbound links
(`net.hosts.outbound`) and of inbound links (`net.hosts.inbound`).
Invariants: a node that dials is known by the name in its hello, and that name belongs from then on
to the key that it used. Frames are decoded only after the authenticator has accepted the peer, and
messages are delivered only after its hello. Malformed and forbidden messages are dropped and
audited; they never end the link of another peer.

Two processes may dial each other: these are two links, and each process sends by its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zmq

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.authenticator import Gate
from monarch._src.net.hosts.inbound import Accepted, NotHeardError
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import LinkEnd, Notice, PeerNamed, link_versions
from monarch._src.net.hosts.link_poll import LinkPoll, is_readable
from monarch._src.net.hosts.outbound import Dialled
from monarch._src.net.hosts.zmq_sockets import (
    FAILURES,
    FAREWELL_S,
    events_of,
    listening_at,
    sent_off,
    watch,
)
from monarch._src.net.interfaces import resolve
from monarch._src.net.state.access import (
    Role,
    check_listener,
    may_say,
)
from monarch._src.net.state.addresses import Address, Listening, Scope
from monarch._src.net.state.link import Link, new_incarnation
from monarch._src.net.state.link_actions import (
    Action,
    Bounds,
    Deliver,
    LinkState,
    LinkUp,
    PeerLost,
    PeerRefused,
    Transmit,
)
from monarch._src.wire.frames import Buffer, FrameError, decode
from monarch._src.wire.link_protocol import Data, LinkHello, decode_link, encode_link

log = logging.getLogger("monarch.net")
_NOBLOCK = int(zmq.NOBLOCK)
AT_ONCE = 256  # messages from one socket before another has its turn


class Links:
    """The links of one process. `deliver` and `told` run under the lock, and must not block."""

    def __init__(
        self,
        node: str,
        keys: Keys | None,
        audit: Audit,
        bounds: Bounds,
        heartbeat_s: float,
        deliver: Callable[[str, Sequence[Buffer], int], None],
        told: Callable[[str, Notice], None],
    ) -> None:
        """Args:
        deliver: takes a message: its sender, its frames, and their size, to be reported by
            `handled` once they are handled.
        told: takes notices about the link to a node.
        heartbeat_s: the seconds of silence after which the transport gives a connection up.
        """
        self.node = node
        self._keys = keys
        self._audit = audit
        self._bounds = bounds
        self._deliver = deliver
        self._told = told
        self._versions = link_versions()
        self._lock = threading.RLock()
        self._context: zmq.Context[Any] = zmq.Context(io_threads=1)
        self._poll = LinkPoll()  # of all and only the sockets that are open
        self._listener = LinkListener(self._context, self._poll, keys, audit, heartbeat_s)
        self._dialled = Dialled(
            self._context, self._poll, keys, heartbeat_s, self._connection, self._refused,
            self._not_listening,
        )  # fmt: skip
        self._accepted = Accepted(self._new_link, has_gate=keys is not None)
        self._last_incarnation = 0
        self._deadline = 0.0  # no deadline of a link is earlier
        self._ended = False  # an end has become final
        self._waiting = False
        # Called when a socket is `missed`, to wake a thread that polls the descriptor; any thread.
        self.on_missed: Callable[[], None] | None = None
        self.dropped = 0
        self.sent = 0  # messages that were given to `send`
        self._closed = False

    # --- opening ----------------------------------------------------------------------------------

    def listen(self, listening: Listening, *, trusts_all: bool = False) -> Address:
        """Accept links at that address; returns it with the actual port.

        Raises:
            PermissionError: there are no keys, and strangers could connect. OSError: the address
                cannot be used, or the name is unknown.
        """
        bind = listening.bind
        resolved = resolve(bind) if bind.transport == "tcp" and bind.scope is Scope.NAME else []
        check_listener(listening, resolved, has_keys=self._keys is not None, trusts_all=trusts_all)
        # The name is resolved on this host; other hosts may resolve it to another address.
        plain = Address("tcp", resolved[0], bind.port) if resolved else bind
        with self._lock:
            return self._listener.listen(bind, plain, partial(self._receive_from, end=None))

    def dial(
        self,
        peer: str,
        address: Address,
        *,
        bounds: Bounds | None = None,
        anybody: bool = False,
        shown: str = "",
    ) -> None:
        """Open a link to a node that listens at that address; a link that has ended is replaced.

        `bounds`: for this link, if not the usual ones. `anybody`: accept any node that answers, and
        rename the link to the name in its hello; a `PeerNamed` notice follows. `shown`: the address
        for errors, if `address` is that of a tunnel.

        Raises:
            ValueError: the link exists.
        """
        with self._lock:
            before = self._dialled.ends.get(peer)
            if before is not None and not before.link.is_final:
                raise ValueError(f"there is a link to {peer} already")
            self._dialled.leave_ended()
            end = LinkEnd(self._new_link(peer, bounds), "", None)
            end.address = shown or str(address)
            end.is_anybody = anybody
            self._dialled.dial(end, address, self._receive_from)
            self._deadline = 0.0
        self._wake()

    def _new_link(self, peer: str, bounds: Bounds | None = None) -> Link:
        number = new_incarnation(time.time_ns(), int.from_bytes(os.urandom(3), "big"))
        number = self._last_incarnation = max(number, self._last_incarnation + (1 << 20))
        bounds = bounds or self._bounds
        return Link(self.node, number, self._versions, peer, bounds, time.monotonic())

    # --- sending ----------------------------------------------------------------------------------

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Send a message of at least one frame. Never blocks.

        Raises:
            NoRoomError: too much is queued for that node; a `Room` notice will follow.
            ConnectionError: there is no link to that node, or it has ended.
        """
        with self._lock:
            end = self._end_to(peer)
            self._do(end, end.link.send(frames, time.monotonic()))
            self.sent += 1
        self._wake()

    def has_room(self, peer: str) -> bool:
        """Whether the queue for that node has room; if not, a `Room` notice will follow."""
        with self._lock:
            end = self._dialled.ends.get(peer) or self._accepted.ends.get(peer)
            return end is None or end.link.is_final or end.link.asked_for_room()

    def bound(self, peer: str, bounds: Bounds) -> None:
        """Change the time-outs of the link to that node, if there is one; sizes stay."""
        with self._lock:
            for end in self._ends_of(peer):
                end.link.bound(bounds)
            self._deadline = 0.0
        self._wake()

    def handled(self, peer: str, size: int) -> None:
        """Report that `size` bytes from that node are handled, which frees room in its window."""
        with self._lock:
            for end in self._ends_of(peer):
                if not end.link.is_final:
                    self._do(end, end.link.handled(size))
                    break
        self._wake()

    def probe(self, peer: str) -> None:
        """Ping that node now; `link_to(peer)` then has the round-trip time."""
        with self._lock:
            end = self._end_to(peer)
            self._do(end, end.link.probe(time.monotonic()))
        self._wake()

    def hang_up(self, peer: str, why: str) -> None:
        """End the link to that node. Idempotent."""
        with self._lock:
            for end in self._ends_of(peer):
                self._do(end, end.link.close(why, time.monotonic()))
            self._dialled.leave_ended()

    def link_to(self, peer: str) -> Link:
        """The link that carries messages to that node. ConnectionError if there is none."""
        with self._lock:
            return self._end_to(peer).link

    def role_of(self, peer: str) -> Role | None:
        """The role in which that node has dialled this one; None if it has not."""
        with self._lock:
            end = self._accepted.ends.get(peer)
            return None if end is None else end.role

    def _ends_of(self, peer: str) -> list[LinkEnd]:
        return [ends[peer] for ends in (self._dialled.ends, self._accepted.ends) if peer in ends]

    def _end_to(self, peer: str) -> LinkEnd:
        end = self._dialled.ends.get(peer) or self._accepted.ends.get(peer)
        if end is None:
            raise ConnectionError(f"there is no link to {peer}")
        return end

    def _do(self, end: LinkEnd, actions: list[Action]) -> None:
        sent = True
        for action in actions:
            if isinstance(action, Transmit):
                frames = [encode_link(action.message), *action.frames]
                sent &= self._send(end, frames)
            elif isinstance(action, Deliver):
                self._deliver(end.link.peer, action.frames, action.size)
            else:
                self._notify(end, action)
        if not sent:
            self._do(end, end.link.disconnected(time.monotonic()))

    def _send(self, end: LinkEnd, frames: Sequence[Buffer]) -> bool:
        """Give ZeroMQ these frames; False if there is no connection."""
        if not end.is_connected:
            return False
        socket = self._listener.socket if end.socket is None else end.socket
        sent = sent_off(socket, end.route, frames)
        self._poll.used(socket)
        return sent

    def _notify(self, end: LinkEnd, notice: Notice) -> None:
        peer = end.link.peer
        self._ended |= end.link.is_final
        if isinstance(notice, PeerLost):
            notice = PeerLost(self._dialled.why_lost(end, notice.why), notice.unacknowledged)
            log.warning("the link to %s is lost: %s", end.shown, notice.why)
        elif isinstance(notice, PeerRefused):
            log.warning("the link to %s was refused: %s", end.shown, notice.why)
            if end.socket is None:
                self._audit.note("refused", why=notice.why, key=end.mark, node=peer)
        elif isinstance(notice, LinkUp) and end.socket is None and not notice.again:
            role = end.role.value if end.role else ""
            self._audit.note("linked", role=role, key=end.mark, node=peer, address=end.address)
        self._told(peer, notice)

    # --- receiving --------------------------------------------------------------------------------

    @property
    def missed(self) -> bool:
        """Whether a socket may have messages although the descriptor is not readable."""
        return self._poll.missed

    def work(self) -> None:
        """Handle all messages and deadlines that are due."""
        with self._lock:
            more = not self._closed
            while more:
                more = self._poll.receive()
                now = time.monotonic()
                if now >= self._deadline:
                    self._check_deadlines(now)
                    more = self._poll.missed
            if self._ended:
                self._ended = False
                self._dialled.leave_ended()

    def _check_deadlines(self, now: float) -> None:
        # No event sets a new deadline that is nearer than half a ping interval.
        self._deadline = now + self._bounds.ping_s / 2
        for ends in (self._dialled.ends, self._accepted.ends):
            for end in list(ends.values()):
                deadline = end.link.next_deadline()
                if deadline is not None and deadline <= now:
                    self._do(end, end.link.time_passed(now))
                    deadline = end.link.next_deadline()
                if deadline is not None:
                    self._deadline = min(self._deadline, deadline)

    def wait(self, timeout_s: float) -> None:
        """Block until a message may be ready or a deadline is due, and then `work`."""
        with self._lock:
            ready = self._closed or self._poll.missed
            self._waiting = True
            timeout_s = min(timeout_s, max(0.0, self._deadline - time.monotonic()))
        if not ready:
            self._poll.wait(timeout_s)
        self._waiting = False
        self.work()

    def fileno(self) -> int:
        """A descriptor that is readable when `work` may have a message to handle."""
        return self._poll.fileno()

    def next_deadline(self) -> float:
        """When `work` must be called without a message; seconds of `time.monotonic`."""
        return self._deadline

    def _wake(self) -> None:
        if self._waiting:
            self._poll.wake()
        elif self._poll.missed and self.on_missed is not None:
            self.on_missed()

    def _receive_from(self, socket: Any, end: LinkEnd | None) -> bool:
        """Handle messages of one socket; True if it may have more."""
        # A message may end its own link; `work` closes the socket later.
        for _ in range(AT_ONCE):
            if not is_readable(socket):
                return False
            parts = socket.recv_multipart(_NOBLOCK, copy=False)
            if end is None:
                self._accept(parts[0].bytes, parts[1:])
            else:
                self._on_frames(end, [part.buffer for part in parts])
        return True

    def _on_frames(self, end: LinkEnd, frames: list[Buffer]) -> None:
        try:
            message = decode_link(frames)
            if isinstance(message, Data) and end.role is Role.OBSERVER:
                self._check_observer(frames[1:])
        except (FrameError, PermissionError) as error:
            self._drop(str(error), key=end.mark, node=end.link.peer)
            return
        if isinstance(message, LinkHello):
            self._on_hello(end, message)
            return
        self._do(end, end.link.received(message, frames[1:], time.monotonic()))

    def _on_hello(self, end: LinkEnd, hello: LinkHello) -> None:
        twin = self._name(end, hello.node) if end.is_anybody else ""
        if hello.node != end.link.peer:
            self._refused(
                end, twin or f"{hello.node} answers at {end.address}, and not {end.link.peer}"
            )
            return
        self._do(end, end.link.received(hello, (), time.monotonic()))

    def _name(self, end: LinkEnd, name: str) -> str:
        """Rename a link that was dialled with `anybody`; returns the reason of a refusal."""
        dialled_as, why = self._dialled.name(end, name)
        if dialled_as:
            self._told(name, PeerNamed(dialled_as))
        return why

    def _check_observer(self, frames: list[Buffer]) -> None:
        message, _ = decode(frames)
        if not may_say(Role.OBSERVER, type(message)):
            raise PermissionError(f"an observer may not send {type(message).__name__}")

    def _drop(self, why: str, **facts: str) -> None:
        self.dropped += 1
        self._audit.note("refused", why=why, **facts)

    # --- inbound links ----------------------------------------------------------------------------

    def _accept(self, route: bytes, parts: list[Any]) -> None:
        frames: list[Buffer] = [part.buffer for part in parts]
        try:
            end = self._accepted.end_of(route, frames, parts[0])
        except NotHeardError as error:
            self._drop(str(error), **error.facts)
            if error.session:
                self._listener.tell(route, error.refusal(self.node))
            return
        if end is not None:
            self._on_frames(end, frames)

    # --- events of the transport ------------------------------------------------------------------

    def _connection(self, end: LinkEnd, is_there: bool) -> None:
        now = time.monotonic()
        self._do(end, end.link.connected(now) if is_there else end.link.disconnected(now))

    def _not_listening(self, end: LinkEnd) -> None:
        self._do(end, end.link.connection_refused(time.monotonic()))

    def _refused(self, end: LinkEnd, why: str) -> None:
        self._do(end, [*end.link.close(why, time.monotonic()), PeerRefused(why)])

    # --- lifetime ---------------------------------------------------------------------------------

    def forked(self) -> None:
        """In a fork of this process: give up the links."""
        self._lock = threading.RLock()  # a thread of the parent may have held the old one
        self._closed = True

    def close(self, why: str = "it was closed") -> None:
        """Say goodbye on every link, and close all sockets. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            ends = [*self._dialled.ends.values(), *self._accepted.ends.values()]
            up = [end for end in ends if end.link.state is LinkState.UP]
            for end in ends:
                self._do(end, end.link.close(why, time.monotonic()))
            self._wait_for_goodbyes(up)
            self._listener.close()
            self._dialled.close()
            self._poll.leave(FAREWELL_S, *self._poll.sockets)
            self._poll.close()
        self._context.term()
        self._listener.wait_for_gate()

    def _wait_for_goodbyes(self, ends: Sequence[LinkEnd]) -> None:
        """Wait at most `FAREWELL_S` until the peers have answered.

        Closing a TCP connection while the peer still writes may discard the last bytes sent.
        """
        until = time.monotonic() + FAREWELL_S
        while not all(end.link.bye_received for end in ends):
            left = until - time.monotonic()
            if left <= 0:
                return
            if not self._poll.receive() and not all(end.link.bye_received for end in ends):
                self._poll.wait(left)


class LinkListener:
    """The listener of a process's links. `socket`: None until it listens."""

    def __init__(
        self,
        context: zmq.Context[Any],
        poll: LinkPoll,
        keys: Keys | None,
        audit: Audit,
        heartbeat_s: float,
    ) -> None:
        self._context = context
        self._poll = poll
        self._keys = keys
        self._audit = audit
        self._heartbeat_s = heartbeat_s
        self._gate: Gate | None = None
        self._monitor: Any = None
        self.socket: Any = None

    def listen(self, bind: Address, plain: Address, receive: Callable[[Any], bool]) -> Address:
        """Accept links at that address; returns it with the actual port.

        `plain`: the same address in numeric form.

        Raises:
            OSError: it is impossible to listen there.
        """
        if self._keys is not None:
            self._gate = self._gate or Gate(self._context, self._keys.allowed, self._audit)
        try:
            socket = listening_at(self._context, plain, self._heartbeat_s, self._keys)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot listen at {bind}: {error.strerror}") from None
        self.socket = socket
        self._monitor = watch(self._context, socket, "listener", FAILURES)
        self._poll.add(self._monitor, self._events, first=True)
        self._poll.add(socket, partial(receive, socket))
        if bind.transport == "ipc":
            return bind
        last = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return bind.with_port(int(last.rpartition(":")[2]))

    def _events(self) -> bool:
        for event in events_of(self._monitor):
            kind = event["event"]
            if kind == zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
                self._audit.note("refused", why="it has no CURVE, or not the secret of its key")
            elif kind == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
                # If two sides are incompatible, either may be the first to close.
                why = "it left before the handshake: it has no CURVE, or was only a probe"
                self._audit.note("broke off", why=why)
        return False

    def tell(self, route: bytes, message: bytes) -> None:
        """Send a message by that route to a peer without an end, if it is still connected."""
        sent_off(self.socket, route, [message])
        self._poll.used(self.socket)

    def close(self) -> None:
        """Stop to accept links. Its sockets are closed with all others of the links."""
        if self.socket is not None:
            self.socket.disable_monitor()
            self.socket = None

    def wait_for_gate(self) -> None:
        """Wait until the authenticator has ended, as it does with the context."""
        if self._gate is not None:
            self._gate.join()
