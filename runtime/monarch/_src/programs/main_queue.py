"""The actors and the bootstrap function that have the main thread of a proc.

Runs in: a proc. Items are given on the receiving thread, and taken on the main thread.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from monarch._src.net.local.interrupt import GuardedLock


class Item(Protocol):
    """An actor, or the bootstrap function."""

    @property
    def finalized(self) -> bool:
        """Whether its code has ended for good, though the main thread may not have left it."""
        ...

    @property
    def shares_main_thread(self) -> bool:
        """Whether it takes turns with other such items."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether its code runs, or is about to."""
        ...


AnyItem = TypeVar("AnyItem", bound=Item)


class MainQueue(Generic[AnyItem]):
    """The items that have the main thread, and those that follow them at once."""

    def __init__(self) -> None:
        self._lock = GuardedLock()
        self._waiting: deque[AnyItem] = deque()
        self._given: list[AnyItem] = []  # those that have not ended, waiting ones included

    def give(self, item: AnyItem) -> bool:
        """Give an item to the main thread; False if it has to run elsewhere.

        An item has the main thread to itself, unless it and all others there share that thread. It
        joins those only while none of them is busy: it would wait for a call that may wait for it.

        An actor tells its owner of its end before the main thread has left it. An item that comes
        meanwhile waits for that moment, since no code of the actor holds it up.
        """
        with self._lock:
            for other in self._given:
                shares = item.shares_main_thread and other.shares_main_thread
                if not other.finalized and (not shares or other.is_busy):
                    return False
            self._given.append(item)
            self._waiting.append(item)
            return True

    def take(self) -> AnyItem | None:
        """The next item to run; None if there is none."""
        return self._waiting.popleft() if self._waiting else None

    def take_shared(self) -> AnyItem | None:
        """The next item, if it shares the main thread."""
        if self._waiting and self._waiting[0].shares_main_thread:
            return self._waiting.popleft()
        return None

    def on_ended(self, item: AnyItem) -> None:
        """The main thread has left that item."""
        with self._lock:
            self._given = [one for one in self._given if one is not item]
