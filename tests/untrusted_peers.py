"""Who says to a process what nobody should: an object that must not be unpickled, a bare node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import Notice, PeerNamed, bounds_of
from monarch._src.net.hosts.links import Links
from monarch._src.net.state.addresses import parse_address
from monarch._src.net.state.link_actions import LinkState
from monarch._src.wire.frames import NO_PAYLOAD, Buffer, Payload, encode
from monarch._src.wire.messages import Message, Relay


class Bomb:
    """Leaves a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (self.path,)


class Caller:
    """One end of a link to a worker, by the book: a node with a key of the job and no more."""

    def __init__(self, own: Keys, name: str, address: str) -> None:
        self.name, self.site = name, ""
        bounds = bounds_of(60.0)
        self.links = Links(name, own, Audit(None), bounds, 10.0, self._deliver, self._told)
        self.links.dial("?", parse_address(address), anybody=True)
        while not self.site or self.links.link_to(self.site).state is not LinkState.UP:
            self.links.wait(1.0)

    def _told(self, peer: str, notice: Notice) -> None:
        if isinstance(notice, PeerNamed):
            self.site = peer

    def _deliver(self, peer: str, _frames: Sequence[Buffer], size: int) -> None:
        self.links.handled(peer, size)

    def say(self, to: str, message: Message, payload: Payload = NO_PAYLOAD) -> None:
        """Have the worker hand that to a node of its host."""
        first, *rest = encode(message, payload)
        relay = Relay(to, self.site, self.name, "")
        assert isinstance(first, bytes)
        self.links.send(self.site, encode(relay, Payload(first, rest)))

    def all_was_heard(self) -> None:
        """What was said by now has been taken, in order."""
        self.links.probe(self.site)
        while self.links.link_to(self.site).unacknowledged:
            self.links.wait(0.1)


@contextmanager
def linked(own: Keys, name: str, address: str) -> Iterator[Caller]:
    """Such a node; its link is closed on the way out."""
    caller = Caller(own, name, address)
    try:
        yield caller
    finally:
        caller.links.close()
