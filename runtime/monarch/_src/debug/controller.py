"""Monarch's `debug_controller()`: what waits, for programs that are written for it.

Runs in: the client, as a controller; asked from any process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

from monarch._src.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch._src.debug.api import waiting
from monarch._src.events import RankPaused, bus
from monarch._src.mesh.controllers import get_or_spawn_controller


@dataclass(frozen=True, order=True)
class DebugSessionInfo:
    """One thread that waits; ordered by actor and rank."""

    actor_name: str
    rank: int
    coords: dict[str, int]
    hostname: str
    function: str | None
    lineno: int | None


class DebugController(Actor):
    """Says what waits at breakpoints. Everything else is in `monarch.debug`."""

    @concurrent_endpoint
    async def wait_pending_session(self) -> None:
        """Answer as soon as something waits."""
        loop = asyncio.get_running_loop()
        came = asyncio.Event()

        def paused(event: RankPaused) -> None:
            if event.paused:
                loop.call_soon_threadsafe(came.set)

        end = bus.subscribe(RankPaused, paused)
        try:
            while not await asyncio.to_thread(waiting):
                await came.wait()
                came.clear()
        finally:
            end()

    @endpoint
    async def list(self, print_output: bool = True) -> list[DebugSessionInfo]:
        """What waits, in order; as a table on the client's own output too, unless not wanted."""
        found = await asyncio.to_thread(waiting)
        if print_output:
            sys.stdout.write(f"{found}\n")
        host = os.uname().nodename
        return sorted(
            DebugSessionInfo(
                one.actor or one.mesh, one.actor_rank, one.actor_point, host, one.function, one.line
            )
            for one in found
        )


def debug_controller() -> DebugController:
    """The controller of that name, as Monarch has it; `monarch.debug` is the whole debugger."""
    return get_or_spawn_controller("debug_controller", DebugController).get()
