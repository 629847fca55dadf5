"""PyTorch Monarch's `debug_controller()`, for programs that are written for it.

Runs in: the client, as a controller; any process may call it.
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
    """One paused thread; ordered by actor and rank."""

    actor_name: str
    rank: int
    coords: dict[str, int]
    hostname: str
    function: str | None
    lineno: int | None


class DebugController(Actor):
    """Lists the threads paused at breakpoints. `monarch.debug` is the complete debugger."""

    @concurrent_endpoint
    async def wait_pending_session(self) -> None:
        """Return as soon as a thread is paused."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def on_paused(event: RankPaused) -> None:
            if event.paused:
                loop.call_soon_threadsafe(changed.set)

        unsubscribe = bus.subscribe(RankPaused, on_paused)
        try:
            while not await asyncio.to_thread(waiting):
                await changed.wait()
                changed.clear()
        finally:
            unsubscribe()

    @endpoint
    async def list(self, print_output: bool = True) -> list[DebugSessionInfo]:
        """List paused threads in order; with `print_output`, also print them in the client."""
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
    """Get the controller actor `debug_controller`, spawning it on first use."""
    return get_or_spawn_controller("debug_controller", DebugController).get()
