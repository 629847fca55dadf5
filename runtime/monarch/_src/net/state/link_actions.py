"""Where one end of a link can be, its bounds, and what it has others do. No I/O.

What follows from what, `net.state.link` says.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from monarch._src.wire.frames import Buffer
from monarch._src.wire.link_protocol import LinkMessage


class LinkState(enum.Enum):
    """Where one end is; the last three are final."""

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

    patience_s: how long there may be no connection before the other end counts as lost; also how
        long the first hello may take.
    ping_s: how often the other end is asked what has come.
    silence_s: how long answers may fail to come while the link is up; None: for ever.
    window: what the other end may send before any of it is handled.
    queue: what may wait here, sent and unacknowledged included, before `send` refuses; or takes
        more all the same, if not `refuses`, and who sends is to ask whether it `has_room`.
    """

    patience_s: float
    ping_s: float
    silence_s: float | None = None
    window: int = 8 << 20
    queue: int = 64 << 20
    refuses: bool = True


# --- actions --------------------------------------------------------------------------------------


class Transmit(msgspec.Struct, frozen=True):
    """Send that to the other end, if there is a connection; it may be lost."""

    message: LinkMessage
    frames: Sequence[Buffer] = ()


class Deliver(msgspec.Struct, frozen=True):
    """The next message of the other end. Report `handled` with its size when it is."""

    frames: Sequence[Buffer]
    size: int


class LinkUp(msgspec.Struct, frozen=True):
    """Messages pass; not for the first time if `again`."""

    again: bool


class LinkDown(msgspec.Struct, frozen=True):
    """They do not; nothing is lost yet."""


class Room(msgspec.Struct, frozen=True):
    """`send` had refused, and would not now."""


class PeerLost(msgspec.Struct, frozen=True):
    """The other end, in that life, is gone for this one.

    `unsaid`: how many messages are not known to have come.
    """

    why: str
    unsaid: int


class PeerLeft(msgspec.Struct, frozen=True):
    """The other end has closed the session."""

    why: str


class PeerRefused(msgspec.Struct, frozen=True):
    """The two can't work together; `why` shows the versions of both."""

    why: str


Action: TypeAlias = (
    "Transmit | Deliver | LinkUp | LinkDown | Room | PeerLost | PeerLeft | PeerRefused"
)
