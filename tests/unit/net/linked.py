"""Real links over real sockets, pumped by a thread of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import Notice
from monarch._src.net.hosts.links import Links
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address, Listening
from monarch._src.net.state.link_actions import Bounds, LinkUp, Room

PATIENCE_S = 60.0
BOUNDS = Bounds(patience_s=30.0, ping_s=0.2)
ANY = Listening(Address("tcp", "127.0.0.1", 0))


class Party:
    """A process, as far as links go: what it got, and what it was told, in order."""

    def __init__(
        self, name: str, keys: Keys | None, log: Path | None, bounds: Bounds, heartbeat_s: float
    ) -> None:
        self.name = name
        self.audit = Audit(log)
        self.messages: queue.SimpleQueue[tuple[str, list[bytes]]] = queue.SimpleQueue()
        self.notices: queue.SimpleQueue[tuple[str, Notice]] = queue.SimpleQueue()
        self.handles = True
        self.unhandled: list[tuple[str, int]] = []
        self.links = Links(name, keys, self.audit, bounds, heartbeat_s, self._deliver, self._told)
        self._ending = False
        self._thread = threading.Thread(target=self._pump, name=f"pumps-{name}")
        self._thread.start()

    def _pump(self) -> None:
        while not self._ending:
            self.links.wait(0.05)

    def _deliver(self, peer: str, frames: Sequence[Any], size: int) -> None:
        self.messages.put((peer, [bytes(frame) for frame in frames]))
        if self.handles:
            self.links.handled(peer, size)
        else:
            self.unhandled.append((peer, size))

    def _told(self, peer: str, notice: Notice) -> None:
        self.notices.put((peer, notice))

    def listen(self, listening: Listening = ANY, **options: Any) -> Address:
        return self.links.listen(listening, **options)

    def dial(self, peer: Party, address: Address) -> None:
        self.links.dial(peer.name, address)

    def send(self, peer: Party, *messages: bytes) -> None:
        for message in messages:
            self.links.send(peer.name, [message])

    def next_message(self) -> bytes:
        """The next one, its frames joined; waits for it."""
        return b"".join(self.messages.get(timeout=PATIENCE_S)[1])

    def next_notice(self, *kinds: type) -> Any:
        """The next notice of these kinds, or of any but that there is room; waits for it."""
        while True:
            _, notice = self.notices.get(timeout=PATIENCE_S)
            if isinstance(notice, kinds) if kinds else not isinstance(notice, Room):
                return notice

    def is_up(self) -> None:
        """Wait until its link is."""
        self.next_notice(LinkUp)

    def close(self) -> None:
        self._ending = True
        self._thread.join()
        self.links.close()
        self.audit.close()


Make = Callable[..., Party]
Load = Callable[[Role], Keys]
