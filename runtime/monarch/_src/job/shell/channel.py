"""The channel between a terminal and the shell on a host: its messages, and their sender.

The messages travel through ports. `WindowedSender` blocks while the other side is behind; it runs
in one thread that sends, and another that receives the reports of `Taken`.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, TypeAlias

from monarch._src.actor.ports import Port, unheeded
from monarch._src.job.state.send_window import SendWindow

_LIMIT = 256 << 10  # so that a key that ends much output acts soon, as people see it


class Opened(NamedTuple):
    """The shell runs; `typed` is the port for the input of the terminal."""

    typed: Port[Message]


class Data(NamedTuple):
    """Bytes for the other side to write."""

    data: bytes


class Taken(NamedTuple):
    """The other side has written that many bytes."""

    written: int


class Resized(NamedTuple):
    """The size of the terminal, in characters."""

    rows: int
    columns: int


class HungUp(NamedTuple):
    """The terminal was closed; the shell is to end."""


class Ended(NamedTuple):
    """No more messages come."""


Message: TypeAlias = "Opened | Data | Taken | Resized | HungUp | Ended"


class WindowedSender:
    """Sends `Data` to a port, within a window."""

    def __init__(self, port: Port[Message]) -> None:
        self._port = unheeded(port)  # a receiver that is gone is no failure
        self._window = SendWindow(_LIMIT)
        self._changed = threading.Condition()
        self._closed = False

    def send(self, data: bytes) -> bool:
        """Send all of it; blocks while the window is full. False if it was closed meanwhile."""
        view = memoryview(data)
        while view:
            with self._changed:
                while not self._closed and not self._window.room:
                    self._changed.wait()
                if self._closed:
                    return False
                piece = view[: self._window.room]
                self._window.on_sent(len(piece))
            self._port.send(Data(bytes(piece)))
            view = view[len(piece) :]
        return True

    def on_taken(self, count: int) -> None:
        """The receiver has written that many bytes."""
        with self._changed:
            self._window.on_taken(count)
            self._changed.notify_all()

    def close(self) -> None:
        """Let a blocked `send` return."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
