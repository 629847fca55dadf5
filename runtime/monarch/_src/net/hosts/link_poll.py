"""Which sockets of links have something to receive, without asking each.

Runs in: any process that has links; the owner's lock is held, but while waiting. Owns: a poll, a
descriptor that wakes who waits. The sockets are their owner's.
A descriptor of ZeroMQ becomes readable when something happens to its socket, and whatever the
socket is used for next takes that back, though what has come is still there. So who uses a socket
looks at it afterwards (`used`), or reads it until nothing is left.
Invariants: of a socket that may be received from, the descriptor is readable, or it is among those
that are `missed`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from monarch._src.net.local.poll import READ, new_poll

_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


def is_readable(socket: Any) -> bool:
    """Whether something can be received from that socket; its descriptor tells nothing of it."""
    return bool(socket.get(_EVENTS) & _POLLIN)


class LinkPoll:
    """See the module's text."""

    def __init__(self) -> None:
        self._poll = new_poll()
        self._wake_r, self._wake_w = os.pipe()
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        self._poll.register(self._wake_r, READ)
        self._receive: dict[int, Callable[[], bool]] = {}
        self._fds: dict[Any, int] = {}
        self._first: set[int] = set()
        self._missed: set[int] = set()

    def add(self, socket: Any, receive: Callable[[], bool], *, first: bool = False) -> None:
        """Look after that socket.

        Args:
            receive: reads it, and says whether there may be more.
            first: before those that are not.
        """
        fd = self._fds[socket] = socket.getsockopt(zmq.FD)
        self._receive[fd] = receive
        if first:
            self._first.add(fd)
        self._missed.add(fd)
        self._poll.register(fd, READ)

    def remove(self, socket: Any) -> None:
        """No more."""
        fd = self._fds.pop(socket)
        del self._receive[fd]
        self._first.discard(fd)
        self._missed.discard(fd)
        self._poll.unregister(fd)

    def leave(self, linger_s: float, *sockets: Any) -> None:
        """Close these; what was said last may take so long to leave."""
        for socket in sockets:
            self.remove(socket)
            socket.close(int(1000 * linger_s))

    @property
    def sockets(self) -> list[Any]:
        """All of ZeroMQ's that are looked after."""
        return list(self._fds)

    @property
    def missed(self) -> bool:
        """Whether something may have come that no descriptor tells of."""
        return bool(self._missed)

    def used(self, socket: Any) -> None:
        """Something was done with that socket other than reading it empty."""
        if is_readable(socket):
            self._missed.add(self._fds[socket])

    def receive(self) -> bool:
        """Read what has something, once each; whether there may be more."""
        for fd, _ in self._poll.poll(0):
            if fd == self._wake_r:
                with suppress(BlockingIOError):
                    os.read(fd, 4096)
            else:
                self._missed.add(fd)
        in_turn = list(self._missed)
        if len(in_turn) > 1:
            in_turn.sort(key=self._first.__contains__, reverse=True)
        for fd in in_turn:
            receive = self._receive.get(fd)  # one that is read may end another
            if receive is None or not receive():  # one that raises is read again
                self._missed.discard(fd)
        return bool(self._missed)

    # --- waiting ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """A descriptor that is readable when one of theirs is."""
        return self._poll.fileno()

    def wait(self, timeout_s: float) -> None:
        """Block until one of them may have something, or somebody wakes us. Without the lock."""
        self._poll.poll(timeout_s)

    def wake(self) -> None:
        """End a wait. Any thread."""
        with suppress(OSError):  # a wake-up is pending, or we are closing
            os.write(self._wake_w, b".")

    def close(self) -> None:
        """Give its descriptors back."""
        self._poll.close()
        fds, self._wake_r, self._wake_w = (self._wake_r, self._wake_w), -1, -1
        for fd in fds:
            os.close(fd)
