"""The parts of a client's session that reach other hosts, as the session sees them.

Package `session` implements and installs them, so that a client without worker hosts loads no
sockets between hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from monarch._src.actor.future import Future
from monarch._src.net.state.addresses import Address


@dataclass(frozen=True)
class GatewayAddress:
    """A gateway: its address as the program gave it, and the numeric one that it is dialled at."""

    said: Address
    dialled: Address

    def is_at(self, address: Address) -> bool:
        """Whether that is the gateway itself, which is dialled as any worker."""
        return address in (self.said, self.dialled)


class HostLinks(Protocol):
    """The worker hosts that this client holds."""

    def held(self) -> list[str]:
        """The sites of all of them."""
        ...

    def is_held(self, site: str) -> bool:
        """Whether the host of that site is one of them."""
        ...

    def let_go(self, sites: Sequence[str]) -> list[Future[None]]:
        """Give hosts back; each future is done when nothing of this client is left on its host."""
        ...

    def end(self, sites: Sequence[str], tell: Callable[[str], object]) -> list[Future[None]]:
        """Give hosts back after `tell` has told the agent of each to end."""
        ...

    def out_of_reach(self, why: str) -> None:
        """Drop all links: another client holds the session now."""
        ...


class RemoteMeshes(Protocol):
    """The meshes of a kept session that run on worker hosts."""

    def tell(self) -> None:
        """Tell the client's own host agent which meshes are on which host."""
        ...

    def detach(self) -> list[Future[Any]]:
        """Release the hosts; each future is done when its host has ended all that was tied."""
        ...
