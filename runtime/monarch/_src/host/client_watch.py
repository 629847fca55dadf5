"""Watches the process of a client that runs on this host.

Runs in: the host agent, on its one thread. Owns: a pidfd, which reports the end of the process at
once, while links and sockets may break and come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from monarch._src.host.owner import AgentServices
from monarch._src.system.process import pidfd


class ClientProcess:
    """The watch; calls `ended` once when the process has ended, and stops watching then."""

    def __init__(self, driver: AgentServices, ended: Callable[[], None]) -> None:
        self._driver = driver
        self._on_end = ended
        self._fd: int | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the end of a process will be reported."""
        return self._fd is not None

    def watch(self, pid: int, is_client: Callable[[], bool]) -> None:
        """Watch that process in place of an earlier one, if `is_client` confirms the client."""
        self.unwatch()
        fd = pidfd(pid)
        if fd is not None and not is_client():  # asked now that the pid cannot be reused
            os.close(fd)
        elif fd is not None:
            self._fd = fd
            self._driver.watch(fd, self._ended)

    def unwatch(self) -> None:
        """Stop watching. Idempotent."""
        if self._fd is not None:
            self._driver.unwatch(self._fd)
            os.close(self._fd)
            self._fd = None

    def _ended(self) -> None:
        self.unwatch()
        self._on_end()
