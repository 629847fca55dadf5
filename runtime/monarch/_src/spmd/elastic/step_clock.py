"""The progress of the endpoint that a rank trains in, as others read it while it runs.

Runs in: a rank. `note` on the thread of the actor that trains, `StepClock` on a loop of its own.
"""

from __future__ import annotations

from monarch._src.actor.current import context
from monarch._src.actor.endpoint import Actor, concurrent_endpoint

_steps = 0


def note() -> None:
    """The actor of this process has begun its endpoint, or has made a step."""
    global _steps
    _steps += 1


class StepClock(Actor):
    """Reports the progress of a rank."""

    __monarch_label__ = "the step clock"
    __monarch_watches__ = True
    __monarch_main_thread__ = "never"

    @concurrent_endpoint
    async def read(self) -> tuple[int, int]:
        """This rank, and how often it has made progress since its process began."""
        return context().actor_instance.rank.rank, _steps
