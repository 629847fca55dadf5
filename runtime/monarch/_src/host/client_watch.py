"""The process of a client that is on this very host, watched for its end.

Runs in: the host agent, on its one thread. Owns: a descriptor on that process, which tells its end
at once, while links and sockets may be cut and come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from monarch._src.host.owner import AgentServices
from monarch._src.system.process import pidfd


class ClientProcess:
    """See the module's text. `ended`: called when it has; it is not watched any more then."""

    def __init__(self, driver: AgentServices, ended: Callable[[], None]) -> None:
        self._driver = driver
        self._tell = ended
        self._fd: int | None = None

    @property
    def is_watched(self) -> bool:
        """Whether its end will be told."""
        return self._fd is not None

    def watch(self, pid: int, is_it: Callable[[], bool]) -> None:
        """Watch that process, if it is the client's, as `is_it` says; none that was before."""
        self.unwatch()
        fd = pidfd(pid)
        if fd is not None and not is_it():  # asked when the number can't go to another any more
            os.close(fd)
        elif fd is not None:
            self._fd = fd
            self._driver.watch(fd, self._ended)

    def unwatch(self) -> None:
        """Watch it no more. Idempotent."""
        if self._fd is not None:
            self._driver.unwatch(self._fd)
            os.close(self._fd)
            self._fd = None

    def _ended(self) -> None:
        self.unwatch()
        self._tell()
