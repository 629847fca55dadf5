"""An end of a link with its sockets and its terms, and notices about links.

The terms are the versions of this process, and its time-outs.

Runs in: any process that listens or dials beyond its host.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any, TypeAlias

import msgspec

from monarch._src.net.interfaces import platform_text
from monarch._src.net.state.access import Role
from monarch._src.net.state.link import Link
from monarch._src.net.state.link_actions import (
    Bounds,
    LinkDown,
    LinkUp,
    PeerLeft,
    PeerLost,
    PeerRefused,
    Room,
)
from monarch._src.version import VERSION
from monarch._src.wire.link_protocol import LINK_PROTOCOL
from monarch._src.wire.messages import PROTOCOL


class PeerNamed(msgspec.Struct, frozen=True):
    """A node that was dialled without a name has sent one; `dialled_as`: its placeholder."""

    dialled_as: str


Notice: TypeAlias = "LinkUp | LinkDown | Room | PeerLost | PeerLeft | PeerRefused | PeerNamed"


class LinkEnd:
    """One end of a link, with the socket or the route for its messages."""

    def __init__(self, link: Link, mark: str, role: Role | None) -> None:
        self.link = link
        self.mark = mark  # of the key of an accepted peer
        self.role = role
        self.route: bytes | None = None  # of an accepted peer
        self.socket: Any = None  # of a dialled one
        self.monitor: Any = None
        self.is_connected = False  # as far as this process knows
        self.address = ""
        self.failed_handshakes = 0
        self.retries = 0  # of a dialled end: connections that failed since the last one that held
        self.probe: Any = None  # a plain socket that tries its address meanwhile
        self.is_anybody = False  # dialled without a name, and the peer has not sent one yet

    def also_called(self, name: str, other: LinkEnd) -> str:
        """The error if the peer's name is already that of the other side of another end."""
        return (
            f"the node at {self.address} has the name {name}, and so has the one at "
            f"{other.address}, to which there is a link already: is that the same worker?"
        )

    @property
    def shown(self) -> str:
        """The name of the other side for people; its address until the name is known."""
        return self.address if self.is_anybody else self.link.peer


def link_versions() -> dict[str, str]:
    """The versions in which both ends of a link have to agree."""
    found = {
        "protocol": str(PROTOCOL),
        "link": str(LINK_PROTOCOL),
        "monarch": VERSION,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "cloudpickle": metadata.version("cloudpickle"),
        "platform": platform_text(),
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__).partition("+")[0]
    return found


def bounds_of(liveness_s: float, *, prompt: bool = False) -> Bounds:
    """Bounds under which a host is lost within that time.

    The transport takes up to a fifth of it to notice a dead connection. `prompt`: the other end
    runs no user code, and has to answer pings itself. It listens as long as it runs, so that an
    address that refuses connections means its end.
    """
    return Bounds(
        patience_s=0.8 * liveness_s,
        ping_s=liveness_s / 30,
        silence_s=liveness_s if prompt else None,
        refused_s=liveness_s / 15 if prompt else None,
    )
