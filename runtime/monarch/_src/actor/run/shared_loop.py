"""The loop of several sync actors that share one thread: it handles one message at a time.

Runs in: a proc, on its main thread. The actors are those that run code of the notebook and of maps,
which may need signals, and which a signal can interrupt where it blocks.
Invariants: each actor handles its messages in the order of their arrival. A call that one actor
runs delays the messages of the others, so no actor joins while another one runs a call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from monarch._src.actor.context import current
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.interruptible_sleep import make_interruptible
from monarch._src.actor.run.sync_loop import construct, end, handle
from monarch._src.errors import CallCancelled
from monarch._src.net.local.interrupt import (
    Shield,
    SignalShield,
    shield_this_thread,
    unshield_this_thread,
)
from monarch._src.net.local.waitable import Waitable

log = logging.getLogger("monarch.actor")


class SharedLoop:
    """The actors that share a thread, from `serve` until the last one has ended."""

    def __init__(
        self,
        newcomer: Callable[[], ActorCell | None],
        work: Waitable,
        on_ended: Callable[[ActorCell], None],
    ) -> None:
        """Make the loop.

        Args:
            newcomer: returns the next actor that joins; None if there is none at present.
            work: done when an actor joins or has a message.
            on_ended: called when an actor has ended, on this thread.
        """
        self._newcomer = newcomer
        self._work = work
        self._on_ended = on_ended
        self._actors: list[ActorCell] = []

    def serve(self, first: ActorCell) -> None:
        """Serve that actor and those that join it, until all have ended."""
        wait, work = first.runtime.node.leader.wait, self._work
        make_interruptible()
        shield = shield_this_thread(CallCancelled)
        try:
            self._admit(first, shield)
            del first  # an actor is released when it has ended
            while self._actors:
                work.done = False  # a message that arrives from here on sets it
                self._take_turns(shield)
                self._admit(self._newcomer(), shield)
                if work.done or not self._actors:
                    continue
                try:
                    if not wait(work, idle=True):
                        return  # the node is closed
                except KeyboardInterrupt:
                    log.debug("interrupted while idle")
        finally:
            current.set(None)
            unshield_this_thread(shield)

    def _admit(self, cell: ActorCell | None, shield: Shield | SignalShield) -> None:
        """Construct an actor that joins, and those that join after it."""
        while cell is not None:
            cell.raise_in, cell.mailbox.on_put = shield.raise_in, self._work.finish
            if cell.prepare() is not None and construct(cell, shield):
                self._actors.append(cell)
                self._work.finish()  # it may have messages
            else:
                self._leave(cell)
            cell = self._newcomer()

    def _take_turns(self, shield: Shield | SignalShield) -> None:
        """Have each actor handle one message, if it has one."""
        for cell in self._actors[:]:
            current.set(cell.idle_context)
            item = cell.mailbox.take() if cell.mailbox.done else None
            if item is None:
                has_ended = cell.dead is not None
            else:
                has_ended = handle(cell, shield, item)
                self._work.finish()  # it may have more
            if has_ended:
                end(cell)
                self._actors.remove(cell)
                self._leave(cell)

    def _leave(self, cell: ActorCell) -> None:
        cell.raise_in = None
        self._on_ended(cell)
