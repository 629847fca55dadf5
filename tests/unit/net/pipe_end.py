"""One end of a pipe in the hands of a test."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from monarch._src.wire.frames import Buffer
from monarch._src.wire.stream import Splitter, pack
from tests.streams import fed


class Stranger:
    """One end of a pipe in the hands of a test, to say what no node would say."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.socket.settimeout(30)
        self._splitter = Splitter()
        self._heard: list[list[bytes]] = []

    def say(self, frames: Sequence[Buffer]) -> None:
        """Send a message."""
        for piece in pack(frames):
            self.socket.sendall(piece)

    def hear(self) -> list[bytes]:
        """The next message; waits for it."""
        while not self._heard:
            data = self.socket.recv(1 << 16)
            assert data, "the other side has closed the pipe"
            self._heard += [message[1:] for message in fed(self._splitter, data)]
        return self._heard.pop(0)

    def is_cut_off(self) -> bool:
        """Whether the other side has closed the pipe; waits until it has, or says something."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
