"""Finds the ZeroMQ sockets of links that are readable, without checking each.

Runs in: any process that has links, under the owner's lock, except for `wait` and `wake`. Owns: a
poll, and a pipe that wakes it. The caller owns the sockets.
The descriptor of a ZeroMQ socket becomes readable when the socket has an event, and any use of the
socket clears that, even if messages are left. So after using a socket the caller checks it
(`used`), or reads it until it is empty.
Invariants: a socket with messages has a readable descriptor, or is among the `missed` ones.
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
    """Whether that socket has a message, whatever the state of its descriptor."""
    return bool(socket.get(_EVENTS) & _POLLIN)


class LinkPoll:
    """The poll for the sockets of one process's links."""

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
        """Add a socket.

        Args:
            receive: reads the socket, and returns whether it may have more messages.
            first: read this socket before the others.
        """
        fd = self._fds[socket] = socket.getsockopt(zmq.FD)
        self._receive[fd] = receive
        if first:
            self._first.add(fd)
        self._missed.add(fd)
        self._poll.register(fd, READ)

    def add_descriptor(self, fd: int, ready: Callable[[], bool]) -> None:
        """Add a descriptor that is no ZeroMQ socket. `ready` is called when it can be read."""
        self._receive[fd] = ready
        self._poll.register(fd, READ)

    def remove(self, socket: Any) -> None:
        """Remove a socket."""
        self.remove_descriptor(self._fds.pop(socket))

    def remove_descriptor(self, fd: int) -> None:
        """Remove a descriptor. The caller closes it."""
        del self._receive[fd]
        self._first.discard(fd)
        self._missed.discard(fd)
        self._poll.unregister(fd)

    def leave(self, linger_s: float, *sockets: Any) -> None:
        """Remove and close sockets; queued messages get `linger_s` seconds to leave."""
        for socket in sockets:
            self.remove(socket)
            socket.close(int(1000 * linger_s))

    @property
    def sockets(self) -> list[Any]:
        """All sockets of this poll."""
        return list(self._fds)

    @property
    def missed(self) -> bool:
        """Whether a socket may have messages although its descriptor is not readable."""
        return bool(self._missed)

    def used(self, socket: Any) -> None:
        """Check a socket after any use that did not read it empty."""
        if is_readable(socket):
            self._missed.add(self._fds[socket])

    def receive(self) -> bool:
        """Read each readable socket once; returns whether one may have more messages."""
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
            receive = self._receive.get(fd)  # reading one socket may remove another
            if receive is None or not receive():  # a socket whose reader raises is read again
                self._missed.discard(fd)
        return bool(self._missed)

    # --- waiting ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """A descriptor that is readable when that of a socket is."""
        return self._poll.fileno()

    def wait(self, timeout_s: float) -> None:
        """Block until a socket may have a message, or `wake` is called. Without the lock."""
        self._poll.poll(timeout_s)

    def wake(self) -> None:
        """End a wait. Any thread."""
        with suppress(OSError):  # a wake-up is pending, or the poll is closing
            os.write(self._wake_w, b".")

    def close(self) -> None:
        """Close the descriptors of the poll."""
        self._poll.close()
        fds, self._wake_r, self._wake_w = (self._wake_r, self._wake_w), -1, -1
        for fd in fds:
            os.close(fd)
