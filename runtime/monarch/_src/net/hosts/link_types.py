"""One end of a link as a process has it, and what it is told about links.

Runs in: any process that listens or dials beyond its host.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from monarch._src.net.state.access import Role
from monarch._src.net.state.link import Link
from monarch._src.net.state.link_actions import (
    LinkDown,
    LinkUp,
    PeerLeft,
    PeerLost,
    PeerRefused,
    Room,
)


class PeerNamed(msgspec.Struct, frozen=True):
    """Who was dialled without knowing its name has said it; `dialled_as`: what it was called."""

    dialled_as: str


Notice: TypeAlias = "LinkUp | LinkDown | Room | PeerLost | PeerLeft | PeerRefused | PeerNamed"


class End:
    """One end of a link, and how what it says leaves this process."""

    def __init__(self, link: Link, mark: str, role: Role | None) -> None:
        self.link = link
        self.mark = mark  # of the key of an accepted peer
        self.role = role
        self.route: bytes | None = None  # of an accepted peer
        self.socket: Any = None  # of a dialled one
        self.monitor: Any = None
        self.address = ""
        self.failed_handshakes = 0
        self.is_anybody = False  # dialled without knowing who it is, and it has not said so yet

    def also_called(self, name: str, other: End) -> str:
        """Why it may not have that name, which the other side of another end has."""
        return (
            f"who answers at {self.address} calls itself {name}, and so does who answers at "
            f"{other.address}, to which there is a link already: is that the same worker?"
        )

    @property
    def shown(self) -> str:
        """What the other side is called, for people: where it is, until its name is known."""
        return self.address if self.is_anybody else self.link.peer
