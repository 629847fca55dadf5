"""The main function of an actor's thread, which chooses the loop for a sync or an async actor.

Runs in: a proc, or a client that hosts controllers, on the actor's thread.
"""

from __future__ import annotations

from monarch._src.actor.context import current
from monarch._src.actor.run import sync_loop
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.interruptible_sleep import make_interruptible


def run(cell: ActorCell) -> None:
    """Run the actor. Returns when the actor has ended."""
    try:
        if cell.runtime.proc_ref is not None:  # not in a client
            make_interruptible()
        cls = cell.prepare()
        if cls is None:
            return
        if cls.is_async:
            from monarch._src.actor.run import async_loop

            async_loop.serve(cell)
        else:
            sync_loop.serve(cell)
    finally:
        current.set(None)  # the main thread must not keep its actor alive
