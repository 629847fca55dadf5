"""Bridges: a debugger in a rank, and who speaks the Debug Adapter Protocol with it from outside.

Its bytes go from the rank to the host agent and on to the console that has asked for the bridge,
and back the same way. Nothing listens for it.
"""

from monarch._src.wire.messages.base import Message

PIECE = 1 << 18  # bytes of the stream in one message, at most


class AskBridge(Message, tag=160):
    """Open a bridge to each of these (mesh, rank), or close it; one BridgeAnswered each."""

    request: int
    targets: list[tuple[int, int]]
    opens: bool


class BridgeAnswered(Message, tag=161):
    """What came of an AskBridge at one rank: it is open, or closed; `problem`: why it is not."""

    request: int
    mesh: int
    rank: int
    bridge: int
    problem: str


class BridgeBytes(Message, tag=162):
    """A piece of the stream, of a bridge by that number; either way.

    `mesh` and `rank` are 0 where a rank says it, which has its own.
    """

    mesh: int
    rank: int
    bridge: int
    data: bytes


class SetBridge(Message, tag=163):
    """Load the debugger and connect it, or take it out. Answered by BridgeSet."""

    bridge: int
    open: bool


class BridgeSet(Message, tag=164):
    """The debugger is connected, or it is not: any more, or, for that problem, at all."""

    bridge: int
    open: bool
    problem: str


class BridgeClosed(Message, tag=165):
    """A bridge that its console has not closed is gone, and why."""

    mesh: int
    rank: int
    bridge: int
    why: str
