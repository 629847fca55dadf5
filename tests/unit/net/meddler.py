"""Something between two that connect, which hears, changes, swallows and cuts what passes."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from monarch._src.net.listening import listener_at


class Meddler:
    """Listens at a port of its own and leads to where it is told; one thread a direction."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.leads_to: int | None = None  # a port; None: what comes is swallowed
        self.swallows = False  # so is it then, though it leads somewhere
        self.heard = bytearray()
        self.changes = False  # the next byte that passes from who has connected
        self.connections = 0
        self._lock = threading.Lock()
        self._made: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._made.append(near)
                if self.leads_to is None or self.swallows:
                    continue
                far = socket.create_connection(("127.0.0.1", self.leads_to))
                self._made.append(far)
                for one, other in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._carry, args=(one, other, one is near))
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, one: socket.socket, other: socket.socket, there: bool) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(one.recv(1 << 16)):
                self.heard += data
                if there and self.changes:
                    self.changes = False
                    data[-1] ^= 1
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End all connections; what they held is lost."""
        with self._lock:
            for one in self._made:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Idempotent."""
        if not self._threads:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()
        for one in (*self._made, self._listener):
            one.close()
        self._threads.clear()

    def in_front_of(self, host: str, backlog: int) -> socket.socket:
        """A listener of trunks that tells others to connect to this."""
        made = listener_at(host, backlog)
        if self.leads_to == 0:
            self.leads_to = made.getsockname()[1]
        return _Telling(made, self.port)  # pyright: ignore[reportReturnType]


class _Telling:
    """A listener that says to be at another port."""

    def __init__(self, made: socket.socket, port: int) -> None:
        self._made = made
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)
