"""Other nodes as a node knows them, and whether the two understand each other.

Runs in: every process. Owns nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.version import VERSION
from monarch._src.wire.frames import Buffer
from monarch._src.wire.messages import PROTOCOL, Hello
from monarch._src.wire.versions import mismatch

# What must be equal on both sides for pickles to be understood.
VERSIONS = {
    "python": ".".join(map(str, sys.version_info[:3])), "monarch": VERSION, "os": sys.platform,
}  # fmt: skip
# What of this side is compared with that of others.
COMPARED = {
    "protocol": str(PROTOCOL), "monarch": VERSIONS["monarch"], "python": VERSIONS["python"],
}  # fmt: skip


class Peer(msgspec.Struct, eq=False):
    """Another node. `route` is None until messages can go out; they wait in `outbox` until then.

    `transmit` is given the route and the frames; `site` is where the node is.
    """

    name: str
    transmit: Callable[[bytes, Sequence[Buffer]], bool]
    site: str
    route: bytes | None = None
    address: str = ""
    hello: Hello | None = None
    gone: bool = False
    outbox: list[list[Buffer]] = msgspec.field(default_factory=list[list[Buffer]])
    lock: GuardedLock = msgspec.field(default_factory=GuardedLock)


def mismatch_with(hello: Hello) -> str:
    """Why we can't work with that peer, as a table of both sides; empty if we can."""
    if hello.protocol == PROTOCOL and hello.versions == VERSIONS:  # as nearly all are
        return ""
    there = {**hello.versions, "protocol": str(hello.protocol)}
    return mismatch(f"{hello.node} (pid {hello.pid})", COMPARED, there)
