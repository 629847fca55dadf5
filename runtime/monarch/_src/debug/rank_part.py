"""Handles the messages of consoles and editors to a rank.

Runs in: a proc, on the receiving thread. The agent's part is `debug.agent_part`.
"""

from __future__ import annotations

from typing import TypeAlias

from monarch._src.actor.runtime import Runtime
from monarch._src.debug.rank.pauses import pauses_of
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import (
    BreakIn,
    BridgeBytes,
    BrokeIn,
    DebugCommand,
    KeepFailures,
    SetBridge,
)

FromAgent: TypeAlias = "DebugCommand | KeepFailures | BreakIn | SetBridge | BridgeBytes"


def on_message(runtime: Runtime, message: FromAgent) -> None:
    """Handle a message that the host agent relays from a console."""
    pauses = pauses_of(runtime)
    if isinstance(message, BreakIn):
        from monarch._src.debug.rank.break_in import break_in

        threads, problem = break_in(pauses)
        runtime.node.send(AGENT, BrokeIn(message.request, threads, problem))
    elif isinstance(message, SetBridge):
        if message.open:
            from monarch._src.debug.rank.debugpy import RankBridge

            pauses.open_bridge(RankBridge(pauses, message.bridge))
        else:
            pauses.close_bridge(message.bridge)
    elif isinstance(message, DebugCommand):
        pauses.command(message)
    elif isinstance(message, KeepFailures):
        pauses.keep_failures(message.on, bystanders=message.bystanders)
    else:
        pauses.on_bridge_bytes(message.bridge, message.data)
