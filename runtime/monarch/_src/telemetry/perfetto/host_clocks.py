"""Compares the clocks of the hosts of a session with that of this process.

Runs in: a client or a rank, on the calling thread, which waits for host agents.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from monarch._src.actor.runtime import Runtime
from monarch._src.telemetry.perfetto.state.clock_offset import ClockOffset, OffsetBounds
from monarch._src.telemetry.sql.collect import Pending, host_of
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import ReadTable
from monarch._src.wire.table_codec import unpacked

READINGS = 8
"""More readings hardly narrow the bounds: the fastest of them counts."""
TABLE, COLUMN = "hosts", "timestamp_us"  # answered by the host agent itself, at once


class _Reading(Pending):
    """The answer of one agent, with the times at which it was asked for and came."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent, TABLE)
        self.asked_ns = time.time_ns()
        self.answered_ns = 0

    def settle(self, decode: Callable[[], Any]) -> None:
        self.answered_ns = time.time_ns()
        super().settle(decode)


def host_clocks(run: Runtime, timeout_s: float) -> dict[str, ClockOffset]:
    """The offset of each other host that answers in time; those that do not are left out."""
    deadline = time.monotonic() + timeout_s
    agents = [agent for agent in run.agent.agents if agent != AGENT]
    bounds = {agent: OffsetBounds() for agent in agents}
    for _ in range(READINGS):
        _read(run, bounds, deadline)
    offsets = {agent: bounds[agent].offset() for agent in agents}
    return {host_of(run, agent): found for agent, found in offsets.items() if found is not None}


def _read(run: Runtime, bounds: dict[str, OffsetBounds], deadline: float) -> None:
    """One reading of each host, all at the same time."""
    question = ReadTable(0, TABLE, [COLUMN], [], 1, max(0.0, deadline - time.monotonic()))
    readings: list[_Reading] = []
    for agent in bounds:
        one = _Reading(agent)
        one.drop = run.agent.read_table(agent, question, one)
        readings.append(one)
    for one in readings:
        run.node.wait(one, max(0.0, deadline - time.monotonic()))
        one.drop()
        if one.answer is not None and one.answer.count == 1:
            ((read_us,),) = unpacked(one.answer.columns, 1, 1)
            bounds[one.agent].add(one.asked_ns, int(read_us or 0), one.answered_ns)
