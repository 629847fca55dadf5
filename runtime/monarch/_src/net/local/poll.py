"""Level-triggered polling of descriptors, which any thread may add during a poll.

On Linux this is epoll itself; elsewhere the system's selector behind epoll's interface.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import sys
from typing import Any, Protocol

READ, WRITE = 1, 4  # as EPOLLIN and EPOLLOUT; other bits mean: read to find the error


class Poll(Protocol):
    """The part of `select.epoll` that the runtime uses."""

    def fileno(self) -> int: ...
    def register(self, fd: int, mask: int, /) -> None: ...
    def modify(self, fd: int, mask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class SelectorPoll:
    """A Poll on top of a selector that has a descriptor itself, as epoll and kqueue do."""

    def __init__(self) -> None:
        self._selector: Any = selectors.DefaultSelector()

    def fileno(self) -> int:
        """A descriptor that is readable while a registered one is ready."""
        return self._selector.fileno()

    def register(self, fd: int, mask: int, /) -> None:
        """Add a descriptor."""
        self._selector.register(fd, _events(mask))

    def modify(self, fd: int, mask: int, /) -> None:
        """Change the events of a descriptor."""
        self._selector.modify(fd, _events(mask))

    def unregister(self, fd: int, /) -> None:
        """Remove a descriptor.

        Raises:
            OSError: it is not registered.
        """
        try:
            self._selector.unregister(fd)
        except KeyError:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Block until a descriptor is ready or the time is up."""
        return [(key.fd, _mask(events)) for key, events in self._selector.select(timeout)]

    def close(self) -> None:
        """Close the selector's own descriptor."""
        self._selector.close()


def _events(mask: int) -> int:
    found = selectors.EVENT_READ if mask & READ else 0
    return found | (selectors.EVENT_WRITE if mask & WRITE else 0)


def _mask(events: int) -> int:
    found = READ if events & selectors.EVENT_READ else 0
    return found | (WRITE if events & selectors.EVENT_WRITE else 0)


def new_poll() -> Poll:
    """A Poll for this system."""
    return select.epoll() if sys.platform == "linux" else SelectorPoll()
