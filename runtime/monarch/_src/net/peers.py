"""The peers of a node, and the check that both sides speak the same protocol.

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

# These must be equal on both sides, or pickles could not be loaded.
VERSIONS = {
    "python": ".".join(map(str, sys.version_info[:3])), "monarch": VERSION, "os": sys.platform,
}  # fmt: skip
# The rows of the table that reports a mismatch.
COMPARED = {
    "protocol": str(PROTOCOL), "monarch": VERSIONS["monarch"], "python": VERSIONS["python"],
}  # fmt: skip


class Peer(msgspec.Struct, eq=False):
    """Another node. Messages wait in `outbox` while `route` is None.

    `transmit` sends frames by a route; `site` is the site of the node.
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
    """The reason to refuse that peer, as a table of both sides; empty if both sides match."""
    if hello.protocol == PROTOCOL and hello.versions == VERSIONS:  # the usual case
        return ""
    there = {**hello.versions, "protocol": str(hello.protocol)}
    return mismatch(f"{hello.node} (pid {hello.pid})", COMPARED, there)
