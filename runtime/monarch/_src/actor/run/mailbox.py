"""The messages of one actor, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from monarch._src.net.local.waitable import Waitable
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, StopActor, Undelivered


class Stop:
    """A mailbox item: end after what came before. `request` is who request, and the message.

    `grace_s`: how long its end may take; None: as the setting says.
    """

    __slots__ = ("grace_s", "reason", "request")

    def __init__(
        self,
        reason: str,
        request: tuple[str, StopActor] | None = None,
        grace_s: float | None = None,
    ) -> None:
        self.reason = reason
        self.request = request
        self.grace_s = grace_s


class CheckFailures:
    """A mailbox item: something that the actor owns has failed. Goes before all others."""


CHECK_FAILURES = CheckFailures()


# A call is (who sent it, what, its arguments, when it came: nanoseconds of the monotonic clock).
Item = tuple[str, Call, Payload, int] | Stop | CheckFailures | Undelivered


def caller_of(item: tuple[str, Call, Payload] | tuple[str, Call, Payload, int]) -> str:
    """The node to which a call is answered, and which alone may cancel it."""
    return item[1].reply_to or item[0]


class Mailbox(Waitable):
    """Done (as a Waitable) while it holds anything, and for good once it is closed.

    `on_put` is called after each put, and by `close`, if set.
    """

    __slots__ = ("_items", "closed", "on_put")

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[Item] = deque()
        self.on_put: Callable[[], None] | None = None
        self.closed = False

    def put(self, item: Item) -> None:
        """Queue an item. Any thread."""
        self._items.append(item)
        self.finish()
        if self.on_put is not None:
            self.on_put()

    def put_first(self, item: Item) -> None:
        """Queue an item before all others. Any thread."""
        self._items.appendleft(item)
        self.finish()
        if self.on_put is not None:
            self.on_put()

    def take(self) -> Item | None:
        """The next item, or None. Only the actor's own thread, until the actor has ended."""
        items = self._items
        item = None
        if items:  # and yet it may be withdrawn before we have it
            try:
                item = items.popleft()
            except IndexError:
                pass
        if not items:  # and yet it may say done: `put` says so after the item can be taken
            self.done = False
            if items or self.closed:  # one came between the two lines above
                self.finish()
        return item

    def withdraw(self, caller: str, number: int) -> Item | None:
        """Take out the call of that number, if it is queued here. Any thread."""
        for item in list(self._items):
            if isinstance(item, tuple) and item[1].call == number and caller_of(item) == caller:
                try:
                    self._items.remove(item)
                except ValueError:
                    return None  # its actor has taken it meanwhile
                return item
        return None

    def queued_calls(self) -> int:
        """How many calls have come and were not taken. Any thread."""
        return sum(isinstance(item, tuple) for item in self._items.copy())

    def holds(self, caller: str, number: int) -> bool:
        """Whether the call of that number is queued here. Any thread."""
        return any(
            isinstance(item, tuple) and item[1].call == number and caller_of(item) == caller
            for item in list(self._items)
        )

    def holds_stop(self) -> bool:
        """Whether its actor is told to end by something that it has not taken yet. Any thread."""
        return any(isinstance(item, Stop) for item in list(self._items))

    def close(self) -> None:
        """Its actor has ended: whoever waits for an item waits no longer. Any thread."""
        self.closed = True
        self.finish()
        if self.on_put is not None:
            self.on_put()

    def __bool__(self) -> bool:
        return bool(self._items)
