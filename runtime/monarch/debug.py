"""Breakpoints on any rank. `breakpoint()` in an endpoint pauses its actor; then, in the client:

from monarch.debug import attach, cast, resume, waiting

print(waiting())                       # the paused ranks, with file and line
with attach("workers[gpus=3]") as console:
    print(console.send("p self.loss"))
    console.send("continue")
print(cast("p self.step", "workers"))  # one command to all paused ranks
resume()
"""

import monarch.actor
from monarch._src.debug.api import (
    attach,
    break_in,
    cast,
    open_bridge,
    post,
    post_mortem,
    resume,
    waiting,
)
from monarch._src.debug.commands import Console, DebugCommands, Replies, Reply, moved
from monarch._src.debug.controller import DebugController, DebugSessionInfo, debug_controller
from monarch._src.debug.dap.client import Bridge
from monarch._src.debug.listing import WaitingRank, WaitingRanks
from monarch._src.debug.rank.user_frames import Source
from monarch._src.debug.rank_selection import Selection, parse_named, parse_ranks
from monarch._src.errors import DebugError
from monarch._src.wire.messages.debugger import COMMAND, COMPLETE, IN_EDITOR, SOURCE

__all__ = [
    "COMMAND",
    "COMPLETE",
    "IN_EDITOR",
    "SOURCE",
    "Bridge",
    "Console",
    "DebugCommands",
    "DebugController",
    "DebugError",
    "DebugSessionInfo",
    "Replies",
    "Reply",
    "Selection",
    "Source",
    "WaitingRank",
    "WaitingRanks",
    "attach",
    "break_in",
    "cast",
    "debug_controller",
    "moved",
    "open_bridge",
    "parse_named",
    "parse_ranks",
    "post",
    "post_mortem",
    "resume",
    "waiting",
]

monarch.actor._prepare()  # pyright: ignore[reportPrivateUsage]
