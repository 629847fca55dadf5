"""Pieces of payloads that another host has, and how they are fetched beside the links.

The host fetcher decides which pieces it needs and when. `payload.hosts` fetches them over
connections of its own; the fetcher knows it by the protocol here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import msgspec

from monarch._src.wire.frames import Buffer
from monarch._src.wire.segment_refs import InSegment


class Outcome(Enum):
    """The result of one request for a piece."""

    HERE = 0
    STALE = 1  # the segment holds another message by now
    UNREADABLE = 2  # the gateway there can open neither this segment nor any other of its sender
    DOWN = 3  # no connection to the site can be made
    NO_MEMORY = 4  # this host has no memory for the piece


class Room(Protocol):
    """The place of a payload on this host."""

    def room(self, part: int, at: int, size: int) -> memoryview | None:
        """Memory for a piece, valid while the caller refers to it; None: call `write` instead."""
        ...

    def write(self, part: int, at: int, data: Buffer) -> None:
        """Write bytes into a part. Raises OSError if there is no memory."""
        ...


class Wanted(msgspec.Struct, eq=False):
    """A piece to be fetched: the payload it belongs to, and its place on this host."""

    fetch: int
    part: int
    at: int
    size: int
    lent: InSegment
    here: Room


class FetchesPieces(Protocol):
    """Fetches pieces beside the links. Called on the gateway's thread."""

    done: Callable[[Wanted, Outcome, str], None]
    """Called on the gateway's thread with each result, and with the reason of a failure."""

    def why_not(self, site: str) -> str:
        """Why payloads of that site go by its link now; empty if they do not."""
        ...

    def ask(self, site: str, wanted: Wanted) -> None:
        """Fetch that piece; `done` is called later."""
        ...

    def forget_site(self, site: str) -> None:
        """The link to the site has ended: forget the site and its requests."""
        ...
