"""The mailbox of one actor: its messages, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from monarch._src.net.local.waitable import Waitable
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, StopActor, Undelivered


class Stop:
    """A mailbox item: end after the items before it.

    `request`: the node that asked for it, and its message. `grace_s`: how long the end may take, in
    seconds; None: `cleanup_timeout`.
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
    """A mailbox item: a mesh that the actor owns has failed. It goes before all others."""


CHECK_FAILURES = CheckFailures()  # the only instance


# A call is (sender, message, arguments, arrival in nanoseconds of the monotonic clock).
Item = tuple[str, Call, Payload, int] | Stop | CheckFailures | Undelivered


def caller_of(item: tuple[str, Call, Payload] | tuple[str, Call, Payload, int]) -> str:
    """The node that receives the answer to a call, and that may cancel the call."""
    return item[1].reply_to or item[0]


class Mailbox(Waitable):
    """Done (as a Waitable) while it holds an item, and for good once it is closed.

    `on_put`, if set, is called after each put, and by `close`.
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
        if items:  # another thread may withdraw the item before `popleft`
            try:
                item = items.popleft()
            except IndexError:
                pass
        if not items:  # `done` may be set: `put` sets it after the item can be taken
            self.done = False
            if items or self.closed:  # an item arrived between the two lines above
                self.finish()
        return item

    def withdraw(self, caller: str, number: int) -> Item | None:
        """Remove and return the call of that number, if it is queued. Any thread."""
        for item in list(self._items):
            if isinstance(item, tuple) and item[1].call == number and caller_of(item) == caller:
                try:
                    self._items.remove(item)
                except ValueError:
                    return None  # the actor has taken it meanwhile
                return item
        return None

    def items(self) -> list[Item]:
        """The queued items, in order. Any thread."""
        return list(self._items.copy())

    def queued_calls(self) -> int:
        """The number of queued calls. Any thread."""
        return sum(isinstance(item, tuple) for item in self._items.copy())

    def holds(self, caller: str, number: int) -> bool:
        """Whether the call of that number is queued. Any thread."""
        return any(
            isinstance(item, tuple) and item[1].call == number and caller_of(item) == caller
            for item in list(self._items)
        )

    def holds_stop(self) -> bool:
        """Whether a Stop is queued. Any thread."""
        return any(isinstance(item, Stop) for item in list(self._items))

    def close(self) -> None:
        """End the wait for an item, since the actor has ended. Any thread."""
        self.closed = True
        self.finish()
        if self.on_put is not None:
            self.on_put()

    def __bool__(self) -> bool:
        return bool(self._items)
