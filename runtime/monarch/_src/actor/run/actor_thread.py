"""The thread of an actor, from its class to its end: which kind it is decides how it lives.

Runs in: a proc, or a client that hosts controllers, on the actor's thread.
"""

from __future__ import annotations

from monarch._src.actor.context import current
from monarch._src.actor.run import sync_loop
from monarch._src.actor.run.cell import ActorCell


def run(cell: ActorCell) -> None:
    """Live and end. Returns when the actor is gone."""
    try:
        cls = cell.prepare()
        if cls is None:
            return
        if cls.is_async:
            from monarch._src.actor.run import async_loop

            async_loop.serve(cell)
        else:
            sync_loop.serve(cell)
    finally:
        current.set(None)  # the main thread outlives its actor, which this would keep
