"""Notices of ends, held back until what the dead have said is received. No I/O, no clock.

The notice that a process has ended comes on another pipe than its last answers, and may overtake
them. So it waits until its pipe is known to hold nothing more (`said_all`), and then for one more
look at what can be received, since that may have come just before. Notices are kept in order: that
of a mesh comes behind those of its procs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Notices(Generic[T]):
    """What has been noticed and not yet told."""

    def __init__(self) -> None:
        # Notice, node or "", when it came.
        self.held: deque[tuple[T, str, float]] = deque()
        self._silent: set[str] = set()  # nodes that have said all, as of the last look

    def __bool__(self) -> bool:
        return bool(self.held)

    def add(self, notice: T, node: str, now: float) -> None:
        """A notice came. `node` is who has ended; empty if it waits only for those before it."""
        self.held.append((notice, node, now))

    def due(self) -> Iterator[T]:
        """Those that may be told now: everything was received after their nodes fell silent."""
        while self.held:
            notice, node, _ = self.held[0]
            if node and node not in self._silent:
                return
            self.held.popleft()
            self._silent.discard(node)
            yield notice

    def look(self, said_all: Callable[[str, float], bool]) -> bool:
        """Ask which of the dead have said all; True if one more look at the socket is wanted."""
        found = False
        for _, node, came in self.held:
            if node and node not in self._silent and said_all(node, came):
                self._silent.add(node)
                found = True
        return found

    def all(self) -> Iterator[T]:
        """Every notice, told now: nothing more can be received."""
        while self.held:
            yield self.held.popleft()[0]
        self._silent.clear()
