"""Backpressure: threads wait here until another host accepts more messages.

Runs in: every process that sends to other hosts, on the threads of user code and the receiving
thread. Owns: the waiting threads, and the credit that this process has with its gateway.
Invariants: a waiting thread receives meanwhile, so it sees the message that grants credit; a
message handler never waits. Only calls and messages to ports wait. Answers, stops and cancellations
do not: they are few, and they end the calls that fill the queues.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch._src.errors import BlockedLoopError
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.local.waitable import Waitable
from monarch._src.net.state.flow_control import QUEUE, SenderCredit


class SendLimits:
    """Limits on the messages that are queued for each site.

    `has_room`: whether the route to a site accepts more now. `waits`: how many bytes of large
    payloads wait here until that site has fetched them.
    """

    def __init__(self, wait: Callable[[Waitable], bool]) -> None:
        self._credit = SenderCredit()
        self.has_room: Callable[[str], bool] = self._credit.has_room
        self.waits: Callable[[str], int] = lambda _: 0
        self._wait = wait
        self._lock = GuardedLock()
        self._waiting: dict[str, list[Waitable]] = {}

    def wait(self, site: str, *, large: bool) -> None:
        """Block while too much is queued for that site.

        `large`: the message has a payload that stays here until that site has fetched it, so it
        also waits for such payloads of earlier messages.
        """
        self.wait_until(
            site, lambda: self.has_room(site) and not (large and self.waits(site) >= QUEUE)
        )

    def wait_until(self, site: str, condition: Callable[[], bool]) -> None:
        """Block until the condition holds; code that makes it hold calls `released`."""
        while not condition():
            waiter = Waitable()
            with self._lock:
                self._waiting.setdefault(site, []).append(waiter)
            if condition():  # it changed before the waiter was registered
                self.released(site)
                return
            try:
                if not self._wait(waiter):
                    return  # the runtime has ended: sending fails with the reason
            except BlockedLoopError:
                return  # a message handler sends: it must not wait, since it is what makes room

    def spent(self, site: str, size: int) -> None:
        """Count bytes that were sent to the gateway for that site. Any thread."""
        with self._lock:
            self._credit.spent(site, size)

    def on_limit_raised(self, site: str, limit: int) -> None:
        """The gateway has raised its limit for that site to so many bytes in total."""
        with self._lock:
            self._credit.on_limit_raised(site, limit)
        self.released(site)

    def reset(self) -> None:
        """Start anew with another gateway."""
        with self._lock:
            self._credit.reset()

    def released(self, site: str) -> None:
        """Wake the threads that wait for that site: it has room, or is gone. Any thread."""
        with self._lock:
            waiting = self._waiting.pop(site, ())
        for waiter in waiting:
            waiter.finish()
