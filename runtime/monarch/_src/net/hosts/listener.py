"""The listener of a process's links: the socket that accepts them, and its authenticator.

Runs in: any process that listens beyond its host, under the lock of its links.
Owns: the authenticator, the socket and its monitor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.authenticator import Gate
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_poll import LinkPoll
from monarch._src.net.hosts.zmq_sockets import FAILURES, events_of, listening_at, sent_off, watch
from monarch._src.net.state.addresses import Address


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
