"""Waiting for many descriptors, which others may be added to meanwhile, from any thread.

Level-triggered: a descriptor is found as long as there is something. On Linux that is epoll as it
is; elsewhere the system's own selector, in its shape.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import sys
from typing import Any, Protocol

READ, WRITE = 1, 4  # as EPOLLIN and EPOLLOUT; whatever else is found means: look


class Poll(Protocol):
    """As much of `select.epoll` as we use."""

    def fileno(self) -> int: ...
    def register(self, fd: int, mask: int, /) -> None: ...
    def modify(self, fd: int, mask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class SelectorPoll:
    """The same by a selector; one that is a descriptor itself, as epoll and kqueue are."""

    def __init__(self) -> None:
        self._selector: Any = selectors.DefaultSelector()

    def fileno(self) -> int:
        """A descriptor that can be read while anything is found."""
        return self._selector.fileno()

    def register(self, fd: int, mask: int, /) -> None:
        """Look after that descriptor too."""
        self._selector.register(fd, _events(mask))

    def modify(self, fd: int, mask: int, /) -> None:
        """Look for something else."""
        self._selector.modify(fd, _events(mask))

    def unregister(self, fd: int, /) -> None:
        """Look after it no more.

        Raises:
            OSError: nobody looks after it.
        """
        try:
            self._selector.unregister(fd)
        except KeyError:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Block until something is found or the time is up."""
        return [(key.fd, _mask(events)) for key, events in self._selector.select(timeout)]

    def close(self) -> None:
        """Give its descriptor back."""
        self._selector.close()


def _events(mask: int) -> int:
    found = selectors.EVENT_READ if mask & READ else 0
    return found | (selectors.EVENT_WRITE if mask & WRITE else 0)


def _mask(events: int) -> int:
    found = READ if events & selectors.EVENT_READ else 0
    return found | (WRITE if events & selectors.EVENT_WRITE else 0)


def new_poll() -> Poll:
    """One for this system."""
    return select.epoll() if sys.platform == "linux" else SelectorPoll()
