"""Something between two that connect, which hears, changes and cuts what passes."""

from __future__ import annotations

import contextlib
import socket
import threading


class Meddler:
    """Listens at a port of its own and leads to another; one thread a direction."""

    def __init__(self, leads_to: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._leads_to = leads_to
        self.heard = bytearray()
        self.changes = threading.Event()  # the next byte that passes from the side that dials
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
                far = socket.create_connection(("127.0.0.1", self._leads_to))
                self._made += [near, far]
                for one, other in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._carry, args=(one, other, one is near))
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, one: socket.socket, other: socket.socket, there: bool) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(one.recv(1 << 16)):
                self.heard += data
                if there and self.changes.is_set():
                    self.changes.clear()
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
        """Give everything back."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()
        for one in (*self._made, self._listener):
            one.close()
