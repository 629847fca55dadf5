"""Where threads wait until another host takes more.

Runs in: every process that sends to other hosts, on the threads of its user code, and the one that
receives. Owns: who waits, and what this process has given its gateway.
Invariants: who waits receives meanwhile, so what makes room can come; a message handler never
waits. Nothing but calls and messages to ports waits for room: answers, stops and cancellations are
few, and what they wait for behind could not be ended otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch._src.errors import BlockedLoopError
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.local.waitable import Waitable
from monarch._src.net.state.flow_control import QUEUE, SenderCredit


class SendLimits:
    """See the module's text.

    has_room: whether the way to that host takes more now. waits: how many bytes of large payloads
    wait here until that host has fetched them.
    """

    def __init__(self, wait: Callable[[Waitable], bool]) -> None:
        self._spending = SenderCredit()
        self.has_room: Callable[[str], bool] = self._spending.has_room
        self.waits: Callable[[str], int] = lambda _: 0
        self._wait = wait
        self._lock = GuardedLock()
        self._waiting: dict[str, list[Waitable]] = {}

    def wait(self, site: str, *, large: bool) -> None:
        """Block while too much waits to be sent to that host.

        `large`: what is to be sent has a payload that waits here until that host has fetched it; so
        it waits for those before it, and what has none does not.
        """
        self.wait_until(
            site, lambda: self.has_room(site) and not (large and self.waits(site) >= QUEUE)
        )

    def wait_until(self, site: str, is_so: Callable[[], bool]) -> None:
        """Block until it is so; whoever makes it so says that there is `more`."""
        while not is_so():
            waiter = Waitable()
            with self._lock:
                self._waiting.setdefault(site, []).append(waiter)
            if is_so():  # it came between
                self.more(site)
                return
            try:
                if not self._wait(waiter):
                    return  # nothing is received any more: what is sent now tells why
            except BlockedLoopError:
                return  # a handler sends, which is what makes room

    def gave(self, site: str, size: int) -> None:
        """The gateway was given so many bytes for that host. Any thread."""
        with self._lock:
            self._spending.gave(site, size)

    def raised(self, site: str, limit: int) -> None:
        """The gateway takes so much for that host."""
        with self._lock:
            self._spending.raised(site, limit)
        self.more(site)

    def begun_anew(self) -> None:
        """There is another gateway."""
        with self._lock:
            self._spending.begun_anew()

    def more(self, site: str) -> None:
        """There is more room for that host, or no host. Any thread."""
        with self._lock:
            waiting = self._waiting.pop(site, ())
        for waiter in waiting:
            waiter.finish()
