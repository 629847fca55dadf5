"""Checks which workers of a job answer, and by which name, before the job is used.

Runs in: clients, on a thread that may block. Owns links of its own while it checks: dialling a
worker does not attach to it. A worker that is stopped or cut off does not answer, which an open
connection alone would not show.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.gateway import ENDS
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import Notice, PeerNamed, bounds_of
from monarch._src.net.hosts.links import Links
from monarch._src.net.state.addresses import Address
from monarch._src.net.state.link_actions import LinkUp

PART_OF_LIVENESS = 3  # a live worker answers within this part of `liveness`


class _Check:
    """The workers that have not answered yet, and the failures of links."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}  # by link: the index of its worker in the order given
        self.why: dict[int, str] = {}
        self.sites: dict[int, str] = {}  # of those that have answered
        self._lock = threading.Lock()

    def on_notice(self, peer: str, notice: Notice) -> None:
        """A link has changed its state. Called on the thread that drives the links."""
        with self._lock:
            if isinstance(notice, PeerNamed):
                if notice.dialled_as in self.waiting:
                    self.waiting[peer] = self.waiting.pop(notice.dialled_as)
            elif isinstance(notice, LinkUp):
                index = self.waiting.pop(peer, None)
                if index is not None:
                    self.sites[index] = peer
            elif isinstance(notice, ENDS) and peer in self.waiting:
                self.why[self.waiting.pop(peer)] = notice.why


def silent(addresses: Sequence[Address], own: Keys | None, timeout_s: float) -> dict[int, str]:
    """The workers that do not answer: the reasons, by index in the order given."""
    return _checked(addresses, own, timeout_s).why


def answering(addresses: Sequence[Address], own: Keys, timeout_s: float) -> dict[int, str]:
    """The workers that answer: the site of each, by index in the order given."""
    return _checked(addresses, own, timeout_s).sites


def _checked(addresses: Sequence[Address], own: Keys | None, timeout_s: float) -> _Check:
    """Dial each of these workers. Those that do not answer have a reason."""
    check = _Check()

    def on_message(peer: str, _frames: Sequence[Any], size: int) -> None:
        links.handled(peer, size)

    links = Links(
        f"job-{os.urandom(4).hex()}", own, Audit(None), bounds_of(timeout_s), timeout_s / 6,
        on_message, check.on_notice,
    )  # fmt: skip
    try:
        for number, address in enumerate(addresses):
            check.waiting[f"?{number}"] = number
            links.dial(f"?{number}", address, anybody=True)
        until = time.monotonic() + timeout_s
        while check.waiting and (left := until - time.monotonic()) > 0:
            links.wait(min(1.0, left))
    finally:
        links.close("the health check is over")
    for index in check.waiting.values():
        check.why[index] = f"no answer in {timeout_s:g} s"
    return check
