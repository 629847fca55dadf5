"""What a node on its host knows of other sites: how frames get there, and come from there.

Runs in: every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from monarch._src.wire.frames import Buffer, FrameError, Payload, apart_of

REMOTE = b"@"  # the route to what is on another site


class RemoteLinks(Protocol):
    """What a gateway has beside its node: the links to other sites. See `net.hosts.gateway`."""

    def pass_on(self, sender: str, origin: str, to: str, site: str, frames: list[Buffer]) -> bool:
        """Have these frames go to that node of that site; False if nothing goes there any more."""
        ...

    def drain(self) -> None:
        """Handle what has come from there."""
        ...

    def forked(self) -> None:
        """This is a fork: it has no links."""
        ...


def frames_within(payload: Payload) -> list[Buffer]:
    """The frames of the message in a Relay.

    Raises:
        FrameError: they are not there; no other host could map a segment.
    """
    if apart_of(payload) is not None:
        raise FrameError("a Relay holds frames, and no place in a segment")
    return [payload.body, *cast("Sequence[Buffer]", payload.buffers)]
