"""The states of one end of a link, its bounds and its actions. No I/O.

The transitions are in `net.state.link`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from monarch._src.wire.frames import Buffer
from monarch._src.wire.link_protocol import LinkMessage


class LinkState(enum.Enum):
    """The state of one end; the last three are final."""

    DOWN = "down"
    GREETING = "greeting"
    UP = "up"
    LOST = "lost"
    LEFT = "left"
    REFUSED = "refused"


FINAL = frozenset({LinkState.LOST, LinkState.LEFT, LinkState.REFUSED})
TRANSITIONS: dict[LinkState, frozenset[LinkState]] = {
    LinkState.DOWN: frozenset({LinkState.GREETING, *FINAL}),
    LinkState.GREETING: frozenset({LinkState.UP, LinkState.DOWN, *FINAL}),
    LinkState.UP: frozenset({LinkState.DOWN, LinkState.GREETING, *FINAL}),
    **{state: frozenset[LinkState]() for state in FINAL},
}


class Bounds(msgspec.Struct, frozen=True):
    """Times in seconds, sizes in bytes.

    patience_s: how long there may be no connection before the other end counts as lost; also the
        limit for the first hello.
    ping_s: the interval of pings.
    silence_s: how long answers may be missing while the link is up; None: for ever.
    window: how many bytes the other end may send before any of them is handled.
    queue: how many bytes of unacknowledged messages may wait here before `send` refuses. If not
        `refuses`, `send` accepts more, and the caller has to check `has_room`.
    refused_s: how long the address of the other end may refuse connections, once the link was up,
        before the other end counts as lost; None: `patience_s` alone counts.
    """

    patience_s: float
    ping_s: float
    silence_s: float | None = None
    window: int = 8 << 20
    queue: int = 64 << 20
    refuses: bool = True
    refused_s: float | None = None


# --- actions --------------------------------------------------------------------------------------


class Transmit(msgspec.Struct, frozen=True):
    """Send this to the other end, if there is a connection; it may be lost."""

    message: LinkMessage
    frames: Sequence[Buffer] = ()


class Deliver(msgspec.Struct, frozen=True):
    """The next message of the other end. Report `handled` with its size afterwards."""

    frames: Sequence[Buffer]
    size: int


class LinkUp(msgspec.Struct, frozen=True):
    """The link is up; `again`: it was up before."""

    again: bool


class LinkDown(msgspec.Struct, frozen=True):
    """The link is down; nothing is lost yet."""


class Room(msgspec.Struct, frozen=True):
    """`send`, which had refused, accepts messages again."""


class PeerLost(msgspec.Struct, frozen=True):
    """The other end, in that incarnation, is lost.

    `unacknowledged`: how many messages are unacknowledged.
    """

    why: str
    unacknowledged: int


class PeerLeft(msgspec.Struct, frozen=True):
    """The other end has closed the session."""

    why: str


class PeerRefused(msgspec.Struct, frozen=True):
    """The two are incompatible; `why` has a table of both versions."""

    why: str


Action: TypeAlias = (
    "Transmit | Deliver | LinkUp | LinkDown | Room | PeerLost | PeerLeft | PeerRefused"
)
