"""The event loop of an async actor, which receives messages itself while it is idle.

Runs in: a process with async actors, on the thread of each. Loaded with the first one.
Invariants: the loop receives only where it would sleep, so a busy loop leaves receiving to other
threads. A callback that any thread schedules ends the sleep.

Waking the loop from another thread costs more than handling the message. So the loop's selector
sleeps through the receive leader (`net.local.leader`): its thread waits for the socket and for the
loop's own descriptors together, and a callback that a message schedules needs no wake-up.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from monarch._src.net.local.leader import ReceiveLeader
from monarch._src.net.local.waitable import Waitable

if TYPE_CHECKING:
    from contextvars import Context

Events: TypeAlias = "list[tuple[selectors.SelectorKey, int]]"


class _Selector(selectors.DefaultSelector):
    """The system's own selector (epoll or kqueue), which sleeps through the receive leader."""

    def __init__(self, leader: ReceiveLeader) -> None:
        super().__init__()
        self._receive_leader = leader
        self.release: Callable[[], None] = _nothing
        self.turn = Waitable()
        self.fd = self.fileno()
        self.awaits = 0
        self._found = False
        self._slept: Events | None = None

    def select(self, timeout: float | None = None) -> Events:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._slept = None
        self._found = self.turn.done = False
        self._receive_leader.wait_with_loop(self, timeout)
        if self._slept is not None:
            return self._slept
        return [] if self.turn.done and not self._found else super().select(0)

    def found(self) -> None:
        self._found = True
        self.turn.finish()

    def sleep(self, timeout_s: float | None) -> None:
        self._slept = super().select(timeout_s)


class ActorLoop(asyncio.SelectorEventLoop):
    """An event loop that can be the receive leader. Constructed on the thread that runs it."""

    def __init__(self, leader: ReceiveLeader) -> None:
        selector = _Selector(leader)
        super().__init__(selector)
        self._receive_leader = leader
        self.awaiting = selector  # futures count the awaited answers here
        self._turn = selector.turn
        self._thread = threading.get_ident()
        selector.release = self._wake

    def handles(self) -> bool:
        """Whether the caller is a message handler on this loop's own thread."""
        return self._receive_leader.handles() and threading.get_ident() == self._thread

    def go_on(self) -> None:
        """End the sleep during which the message is handled: a callback was scheduled."""
        self._turn.finish()

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback. From a handler on this thread, that needs no wake-up."""
        if self.handles():
            handle = self.call_soon(callback, *args, context=context)
            self.go_on()
        else:
            handle = super().call_soon_threadsafe(callback, *args, context=context)
            self._turn.done = True  # the receiving thread has handled a message of another thread
        return handle

    def _wake(self) -> None:
        super().call_soon_threadsafe(_nothing)


def new_loop(leader: ReceiveLeader) -> asyncio.AbstractEventLoop:
    """A loop for an actor: an ActorLoop, unless the user's policy makes another kind."""
    loop = asyncio.new_event_loop()
    if type(loop) is not asyncio.SelectorEventLoop:
        return loop
    loop.close()
    return ActorLoop(leader)


def _nothing() -> None:
    pass
