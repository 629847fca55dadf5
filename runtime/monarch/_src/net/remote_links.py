"""The interface between a node and the links of its gateway to other sites.

Runs in: every process. Apart from `net.hosts`, so that a proc imports no ZeroMQ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from monarch._src.wire.frames import Buffer, FrameError, Payload, apart_of

REMOTE = b"@"  # the route of peers on other sites


class RemoteLinks(Protocol):
    """The links of a gateway to other sites. See `net.hosts.gateway`."""

    def pass_on(self, sender: str, origin: str, to: str, site: str, frames: list[Buffer]) -> bool:
        """Send these frames to a node of that site; False if the site is gone."""
        ...

    def drain(self) -> None:
        """Handle the messages that have arrived from other sites."""
        ...

    def forked(self) -> None:
        """In a fork of this process: give up the links."""
        ...


def frames_within(payload: Payload) -> list[Buffer]:
    """The frames of the message in a Relay.

    Raises:
        FrameError: the Relay refers to a segment, which another host cannot map.
    """
    if apart_of(payload) is not None:
        raise FrameError("a Relay holds frames, and no place in a segment")
    return [payload.body, *cast("Sequence[Buffer]", payload.buffers)]
