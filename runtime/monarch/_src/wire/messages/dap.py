"""Bridges between a debugger in a rank and a client of the Debug Adapter Protocol outside.

The bytes go from the rank to the host agent and on to the console that asked for the bridge, and
back the same way. No process listens on a port for it.
"""

from monarch._src.wire.messages.base import Message

PIECE = 1 << 18  # bytes of the stream in one message, at most


class AskBridge(Message, tag=160):
    """Open a bridge to each of these (mesh, rank), or close it; one BridgeAnswered for each."""

    request: int
    targets: list[tuple[int, int]]
    opens: bool


class BridgeAnswered(Message, tag=161):
    """The result of an AskBridge at one rank: open, or closed; `problem`: why it failed."""

    request: int
    mesh: int
    rank: int
    bridge: int
    problem: str


class BridgeBytes(Message, tag=162):
    """A piece of the stream of a bridge, in either direction.

    `mesh` and `rank` are 0 if a rank sends it: the agent knows them.
    """

    mesh: int
    rank: int
    bridge: int
    data: bytes


class SetBridge(Message, tag=163):
    """Load the debugger and connect it, or disconnect it. Answered by BridgeSet."""

    bridge: int
    open: bool


class BridgeSet(Message, tag=164):
    """The debugger is connected, or no longer; `problem`: why it cannot be."""

    bridge: int
    open: bool
    problem: str


class BridgeClosed(Message, tag=165):
    """A bridge has ended, not by its console, for that reason."""

    mesh: int
    rank: int
    bridge: int
    why: str
