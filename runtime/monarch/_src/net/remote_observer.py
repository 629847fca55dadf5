"""Asks the agent of another host what its ranks do, over a link, with any key of its job.

Runs in: the command line; one thread, which blocks. Who asks owns nothing, has the host for no
moment, and keeps no other from having it; who has an observer's key may say this and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_terms import bounds_of
from monarch._src.net.hosts.link_types import Notice, PeerNamed
from monarch._src.net.hosts.links import Links
from monarch._src.net.interfaces import first_that_answers
from monarch._src.net.remote_links import frames_within
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address
from monarch._src.net.state.link_actions import LinkUp, PeerLeft, PeerLost, PeerRefused
from monarch._src.wire.frames import Buffer, FrameError, decode, encode
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import Relay, Snapshot, Snapshotted

_ANYBODY = "?"


def look_at(address: Address, own: Keys | None, timeout_s: float) -> tuple[str, Snapshotted]:
    """The site of the worker there, and what its ranks do.

    Raises:
        HostUnreachableError: nobody listens there. ConnectionError: it is refused, or no worker, or
            does not answer in time; with the reason.
    """
    until = time.monotonic() + timeout_s
    where = first_that_answers("the worker", [address], timeout_s)
    asking = _Asking(own, timeout_s)
    try:
        return asking.ask(where, until)
    finally:
        asking.links.close("it has seen enough")


class _Asking:
    """One question. What links tell is kept until it is looked at: a link is no place to work."""

    def __init__(self, own: Keys | None, timeout_s: float) -> None:
        is_observer = own is not None and own.role is Role.OBSERVER
        name = f"{OBSERVER if is_observer else 'look-'}{os.urandom(6).hex()}"
        self.links = Links(
            name, own, Audit(None), bounds_of(timeout_s), timeout_s / 6, self._took, self._told
        )
        self._peer = _ANYBODY
        self._is_up = False
        self._why = ""
        self._answer: Snapshotted | None = None

    def ask(self, where: Address, until: float) -> tuple[str, Snapshotted]:
        """See `look_at`."""
        self.links.dial(_ANYBODY, where, anybody=True)
        asked = False
        while self._answer is None:
            if self._why:
                raise ConnectionError(self._why)
            left = until - time.monotonic()
            if left <= 0:
                what = "answer" if asked else "say hello"
                raise ConnectionError(f"the worker at {where} does not {what} in time")
            if self._is_up and not asked:
                asked = True
                self.links.send(self._peer, encode(Snapshot(1, [])))
            self.links.wait(left)
        return self._peer, self._answer

    def _took(self, peer: str, frames: Sequence[Buffer], size: int) -> None:
        self.links.handled(peer, size)
        try:
            message, payload = decode(frames)
            if isinstance(message, Relay):
                message, _ = decode(frames_within(payload))
        except FrameError as error:
            self._why = f"{peer} says what is no message: {error}"
            return
        if isinstance(message, Snapshotted):
            self._answer = message

    def _told(self, peer: str, notice: Notice) -> None:
        if isinstance(notice, PeerNamed):
            self._peer = peer
        elif isinstance(notice, LinkUp):
            self._is_up = True
        elif isinstance(notice, (PeerLost, PeerLeft, PeerRefused)):
            self._why = notice.why
