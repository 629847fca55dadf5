"""Tunnels through a worker's agent to other hosts: their far ends.

Runs in: the host agent of a worker, on its one thread. The gateway serves any client, whichever
client has the host, and several at once. Owns: the connections.
Invariants: only the holder of an owner's key gets a stream; such a client could run a program here
that connects anywhere. The audit has each address that is requested.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from monarch._src.host.owner import AgentServices
from monarch._src.net.hosts.gateway import ENDS, Gateway
from monarch._src.net.hosts.link_ends import Notice
from monarch._src.net.state.access import Role
from monarch._src.net.state.link_actions import Room
from monarch._src.net.tunnel.connections import Tunnels
from monarch._src.net.tunnel.state.tunnel import TunnelMessage
from monarch._src.wire.frames import Payload, encode
from monarch._src.wire.messages import Message, TunnelOpen, TunnelOpened

log = logging.getLogger("monarch.agent")


class FarTunnels:
    """The far ends of all tunnels. `note` writes into the audit: event, node, facts."""

    def __init__(self, gateway: Gateway, driver: AgentServices, note: Callable[..., None]) -> None:
        self._gateway = gateway
        self._driver = driver
        self._note = note
        # Without keys any process of this host may ask, and none can be authenticated.
        self._tunnels = Tunnels(
            self._say, gateway.links.has_room, near=False, beyond=gateway.has_keys
        )
        driver.watch(self._tunnels.fileno(), self._tunnels.work)

    def next_deadline(self) -> float | None:
        """When `looked` has something to do, or None."""
        return self._tunnels.next_deadline()

    def looked(self) -> None:
        """Give up connections that were not established in time."""
        deadline = self._tunnels.next_deadline()
        if deadline is not None and deadline <= time.monotonic():
            self._tunnels.work()

    def on_notice(self, link: str, notice: Notice) -> None:
        """The link of a tunnel has changed its state."""
        if isinstance(notice, ENDS):
            self._tunnels.cut(link, notice.why)
        elif isinstance(notice, Room):
            self._tunnels.on_room(link)

    def on_message(self, link: str, message: TunnelMessage, payload: Payload) -> None:
        """The near end of a tunnel has sent a message."""
        if isinstance(message, TunnelOpen):
            role = self._gateway.role_of(link)
            if role not in (None, Role.OWNER):
                why = f"its key is that of {role.value}, and only owners use gateways"
                self._note("refused", link, why=why, address=message.address)
                self._say(link, TunnelOpened(message.stream, "", why), Payload(b""))
                return
            self._note("tunnel", link, address=message.address)
        self._tunnels.on_message(link, message, payload)

    def _say(self, link: str, message: Message, payload: Payload) -> None:
        try:
            self._gateway.links.send(link, encode(message, payload))
        except ConnectionError as error:  # it has just ended, and a notice is on its way
            log.debug("a tunnel has ended: %s", error)

    def close(self) -> None:
        """Close all connections."""
        self._driver.unwatch(self._tunnels.fileno())
        self._tunnels.close()
