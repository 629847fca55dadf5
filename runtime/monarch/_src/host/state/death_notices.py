"""Notices of ends, held back until the last messages of the ended node are received. No I/O.

The notice that a process has ended takes another pipe than its last answers and may overtake them.
So it waits until the pipe of that node is known to be empty (`said_all`), and then for one more
read of the socket, since messages may have arrived just before. Notices stay in order: that of a
mesh follows those of its procs. The module has no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Notices(Generic[T]):
    """Notices that were added and are not due yet."""

    def __init__(self) -> None:
        # Notice, node or "", the time of `add`.
        self.held: deque[tuple[T, str, float]] = deque()
        self._silent: set[str] = set()  # nodes whose pipes were empty at the last look

    def __bool__(self) -> bool:
        return bool(self.held)

    def add(self, notice: T, node: str, now: float) -> None:
        """Hold a notice. `node` has ended; empty if the notice only waits for those before it."""
        self.held.append((notice, node, now))

    def due(self) -> Iterator[T]:
        """Notices whose nodes' messages have all been received."""
        while self.held:
            notice, node, _ = self.held[0]
            if node and node not in self._silent:
                return
            self.held.popleft()
            self._silent.discard(node)
            yield notice

    def poll(self, said_all: Callable[[str, float], bool]) -> bool:
        """Ask which ended nodes have no messages left; True if another read is due."""
        found = False
        for _, node, came in self.held:
            if node and node not in self._silent and said_all(node, came):
                self._silent.add(node)
                found = True
        return found

    def all(self) -> Iterator[T]:
        """Every notice, when nothing more can be received."""
        while self.held:
            yield self.held.popleft()[0]
        self._silent.clear()
