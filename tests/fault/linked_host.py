"""A program of a host that links to another, sends it numbers, and checks those that it gets.

    linked_host.py KEYS NAME LIVENESS SIZE listen ADDRESS
    linked_host.py KEYS NAME LIVENESS SIZE dial PEER ADDRESS

Each number has SIZE bytes with it. Says what happens as lines of JSON. On its input: `stop`, send
no more but how many there were; and `hold SECONDS`, let no other thread of Python run for so long.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Sequence
from typing import Any

from monarch._src.net.hosts import keys
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.link_ends import Notice, bounds_of
from monarch._src.net.hosts.links import Links
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import parse_address, parse_listening
from monarch._src.net.state.link import NoRoomError

EVERY = 500
AHEAD = 200  # numbers that are not known to have come


def say(**facts: Any) -> None:
    # A line at once, since two threads say something: `print` writes its end apart.
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Host:
    """One end. Sends from its main thread, receives there too."""

    def __init__(self, directory: str, name: str, liveness_s: float, size: int, role: Role) -> None:
        self.filling = b"x" * size
        own = keys.load(directory, None, role)
        self.links = Links(
            name, own, Audit(None), bounds_of(liveness_s), liveness_s / 6, self.deliver, self.told
        )
        self.peer = ""
        self.sent = self.got = 0
        self.in_order = True
        self.stopping = self.stopped = self.lost = self.ended = False

    def deliver(self, peer: str, frames: Sequence[Any], size: int) -> None:
        text = b"".join(frames).split(b" ", 1)[0].decode()
        self.links.handled(peer, size)
        if text.startswith("end"):
            say(got=self.got, of=int(text[3:]), in_order=self.in_order)
            return
        self.got += 1
        self.in_order &= int(text) == self.got
        if self.got % EVERY == 0:
            say(progress=self.got)

    def told(self, peer: str, notice: Notice) -> None:
        self.peer = peer
        self.lost |= type(notice).__name__ == "PeerLost"
        say(notice=type(notice).__name__, why=getattr(notice, "why", ""))

    def read(self) -> None:
        for line in sys.stdin:
            self.stopping |= line == "stop\n"
            if line.startswith("hold"):
                ctypes.PyDLL(None).sleep(int(line.split()[1]))
                say(held=True)
        self.ended = True

    def run(self) -> None:
        threading.Thread(target=self.read, daemon=True).start()
        while not self.ended:
            self.links.wait(0.002 if self.peer and not self.stopped else 0.05)
            if self.peer and not self.lost:
                self.feed()
        self.links.close()

    def feed(self) -> None:
        link = self.links.link_to(self.peer)
        while not self.stopping and link.unacknowledged < AHEAD:
            try:
                self.links.send(self.peer, [b"%d " % (self.sent + 1), self.filling])
            except NoRoomError:
                return
            self.sent += 1
            if self.sent % 50 == 0:
                return
        if self.stopping and not self.stopped:
            self.stopped = True
            self.links.send(self.peer, [b"end%d " % self.sent])


def main() -> None:
    directory, name, liveness, size, what, *rest = sys.argv[1:]
    role = Role.WORKER if what == "listen" else Role.OWNER
    host = Host(directory, name, float(liveness), int(size), role)
    if what == "listen":
        say(listening=str(host.links.listen(parse_listening(rest[0]))))
    else:
        host.links.dial(rest[0], parse_address(rest[1]))
    host.run()


if __name__ == "__main__":
    main()
