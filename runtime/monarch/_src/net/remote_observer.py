"""Asks the agent of another host for a snapshot, over a link, with any key of its job.

Runs in: the command line; one thread, which blocks. The observer never becomes the tenant of the
host, and does not disturb the tenant. An observer's key permits this request only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import Notice, PeerNamed, bounds_of
from monarch._src.net.hosts.links import Links
from monarch._src.net.interfaces import first_that_answers
from monarch._src.net.remote_links import frames_within
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address
from monarch._src.net.state.link_actions import LinkUp, PeerLeft, PeerLost, PeerRefused
from monarch._src.wire.frames import Buffer, FrameError, decode, encode
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import Relay, Snapshot, Snapshotted

_UNKNOWN_PEER = "?"


def look_at(address: Address, own: Keys | None, timeout_s: float) -> tuple[str, Snapshotted]:
    """The site of the worker at that address, and a snapshot of its ranks.

    Raises:
        HostUnreachableError: no process listens there. ConnectionError: the worker refuses the
            connection, is no worker, or does not answer in time; with the reason.
    """
    deadline = time.monotonic() + timeout_s
    reachable = first_that_answers("the worker", [address], timeout_s)
    request = _SnapshotRequest(own, timeout_s)
    try:
        return request.run(reachable, deadline)
    finally:
        request.links.close("it has seen enough")


class _SnapshotRequest:
    """One request. Callbacks of the link only store their arguments: they must be quick."""

    def __init__(self, own: Keys | None, timeout_s: float) -> None:
        is_observer = own is not None and own.role is Role.OBSERVER
        name = f"{OBSERVER if is_observer else 'look-'}{os.urandom(6).hex()}"
        self.links = Links(
            name, own, Audit(None), bounds_of(timeout_s), timeout_s / 6,
            self._on_frames, self._on_notice,
        )  # fmt: skip
        self._peer = _UNKNOWN_PEER
        self._is_up = False
        self._why = ""
        self._answer: Snapshotted | None = None

    def run(self, address: Address, deadline: float) -> tuple[str, Snapshotted]:
        """See `look_at`."""
        self.links.dial(_UNKNOWN_PEER, address, anybody=True)
        is_sent = False
        while self._answer is None:
            if self._why:
                raise ConnectionError(self._why)
            left = deadline - time.monotonic()
            if left <= 0:
                missing = "answer" if is_sent else "say hello"
                raise ConnectionError(f"the worker at {address} does not {missing} in time")
            if self._is_up and not is_sent:
                is_sent = True
                self.links.send(self._peer, encode(Snapshot(1, [])))
            self.links.wait(left)
        return self._peer, self._answer

    def _on_frames(self, peer: str, frames: Sequence[Buffer], size: int) -> None:
        self.links.handled(peer, size)
        try:
            message, payload = decode(frames)
            if isinstance(message, Relay):
                message, _ = decode(frames_within(payload))
        except FrameError as error:
            self._why = f"{peer} sent a malformed message: {error}"
            return
        if isinstance(message, Snapshotted):
            self._answer = message

    def _on_notice(self, peer: str, notice: Notice) -> None:
        if isinstance(notice, PeerNamed):
            self._peer = peer
        elif isinstance(notice, LinkUp):
            self._is_up = True
        elif isinstance(notice, (PeerLost, PeerLeft, PeerRefused)):
            self._why = notice.why
