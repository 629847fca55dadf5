"""The actors and the bootstrap function that the main thread of a proc runs, one after another.

Runs in: a proc. Items are given on the receiving thread, and taken on the main thread.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from monarch._src.net.local.interrupt import GuardedLock


class Item(Protocol):
    """An actor, or the bootstrap function."""

    @property
    def finalized(self) -> bool:
        """Whether its code has ended for good, though the main thread may not have left it."""
        ...


class MainQueue:
    """The items that have the main thread: the running one, and one that follows it at once."""

    def __init__(self) -> None:
        self._lock = GuardedLock()
        self._waiting: deque[Item] = deque()
        self._newest: Item | None = None  # that was given, until it has ended

    def give(self, item: Item) -> bool:
        """Give an item to the main thread; False if another one has it.

        An actor tells its owner of its end before the main thread has left it. An item that comes
        meanwhile waits for that moment, since no code of the actor holds it up.
        """
        with self._lock:
            if self._newest is not None and not self._newest.finalized:
                return False
            self._newest = item
            self._waiting.append(item)
            return True

    def take(self) -> Item | None:
        """The next item to run; None if there is none."""
        return self._waiting.popleft() if self._waiting else None

    def on_ended(self, item: Item) -> None:
        """The main thread has left that item."""
        with self._lock:
            if self._newest is item:
                self._newest = None
