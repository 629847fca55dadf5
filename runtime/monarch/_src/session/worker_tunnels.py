"""The part of a worker's agent in which it is the way to other hosts: the far ends of tunnels.

Runs in: the host agent of a worker, on its one thread. Whose host it is makes no difference: a
tunnel asks for none, and several clients may go through one gateway. Owns: the connections.
Invariants: only who has the key of an owner gets a stream, and such a one could have any program
run here that connects to where it likes; each address that is asked for is in the audit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from monarch._src.host.owner import AgentServices
from monarch._src.net.hosts.gateway import ENDS, Gateway
from monarch._src.net.hosts.link_types import Notice
from monarch._src.net.state.access import Role
from monarch._src.net.state.link_actions import Room
from monarch._src.net.tunnel.connections import Tunnels
from monarch._src.net.tunnel.state.tunnel import TunnelMessage
from monarch._src.wire.frames import Payload, encode
from monarch._src.wire.messages import Message, TunnelOpen, TunnelOpened

log = logging.getLogger("monarch.agent")


class FarTunnels:
    """See the module's text. `note` writes into the audit: what, who, facts."""

    def __init__(self, gateway: Gateway, driver: AgentServices, note: Callable[..., None]) -> None:
        self._gateway = gateway
        self._driver = driver
        self._note = note
        # Without keys anybody of this host may ask, and nobody could be asked who he is.
        self._tunnels = Tunnels(
            self._say, gateway.links.has_room, near=False, beyond=gateway.has_keys
        )
        driver.watch(self._tunnels.fileno(), self._tunnels.work)

    def next_deadline(self) -> float | None:
        """When `looked` has something to do, or None."""
        return self._tunnels.next_deadline()

    def looked(self) -> None:
        """Give up what is dialled in vain."""
        deadline = self._tunnels.next_deadline()
        if deadline is not None and deadline <= time.monotonic():
            self._tunnels.work()

    def told(self, link: str, notice: Notice) -> None:
        """Something has become of the link of a tunnel."""
        if isinstance(notice, ENDS):
            self._tunnels.cut(link, notice.why)
        elif isinstance(notice, Room):
            self._tunnels.more_room(link)

    def heard(self, link: str, message: TunnelMessage, payload: Payload) -> None:
        """The near end of a tunnel has said that."""
        if isinstance(message, TunnelOpen):
            role = self._gateway.role_of(link)
            if role not in (None, Role.OWNER):
                why = f"its key is that of {role.value}, and owners go through gateways"
                self._note("refused", link, why=why, address=message.address)
                self._say(link, TunnelOpened(message.stream, "", why), Payload(b""))
                return
            self._note("tunnel", link, address=message.address)
        self._tunnels.heard(link, message, payload)

    def _say(self, link: str, message: Message, payload: Payload) -> None:
        try:
            self._gateway.links.send(link, encode(message, payload))
        except ConnectionError as error:  # it has just ended, of which we are about to be told
            log.debug("a tunnel has ended: %s", error)

    def close(self) -> None:
        """Close all connections."""
        self._driver.unwatch(self._tunnels.fileno())
        self._tunnels.close()
