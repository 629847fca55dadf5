"""The messages of one actor, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from monarch._src.errors import MeshFailure
from monarch._src.net.baton import Waitable
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, StopActor


class StopNow:
    """A mailbox item: end after what came before. `asked` is who asked, and the message."""

    __slots__ = ("asked", "reason")

    def __init__(self, reason: str, asked: tuple[str, StopActor] | None = None) -> None:
        self.reason = reason
        self.asked = asked


# A call is (who sent it, what, its arguments, when it came: nanoseconds of the monotonic clock).
Item = tuple[str, Call, Payload, int] | StopNow | MeshFailure


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

    def take(self) -> Item | None:
        """The next item, or None. Only the actor's own thread, until the actor has ended."""
        try:
            item = self._items.popleft()
        except IndexError:
            item = None  # and yet it may say done: `put` says so after the item can be taken
        if not self._items:
            self.done = False
            if self._items or self.closed:  # one came between the two lines above
                self.finish()
        return item

    def close(self) -> None:
        """Its actor has ended: whoever waits for an item waits no longer. Any thread."""
        self.closed = True
        self.finish()
        if self.on_put is not None:
            self.on_put()

    def __bool__(self) -> bool:
        return bool(self._items)
