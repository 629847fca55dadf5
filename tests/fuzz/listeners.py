"""Processes that listen, as they are made for users, and who says to them what nobody should.

Runs in: the process of pytest.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import zmq

from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import link_versions
from monarch._src.net.local.router import SCHEME
from monarch._src.net.peers import VERSIONS
from monarch._src.net.session_directory import address_of
from monarch._src.net.state.access import Role
from monarch._src.wire.frames import Buffer, decode, encode
from monarch._src.wire.ids import AGENT
from monarch._src.wire.link_protocol import LinkHello, Ping, Pong, decode_link, encode_link
from monarch._src.wire.messages import PROTOCOL, Hello, Refused, Snapshot, Snapshotted
from tests.unit.net.pipe_end import Stranger

PATIENCE_MS = 60_000
NO_BOUND = 1 << 40
PATIENCE_S = PATIENCE_MS / 1000
T = TypeVar("T")
L = TypeVar("L", LinkHello, Pong)


class Dealer:
    """A ZeroMQ socket that says any frames."""

    def __init__(self, address: str, own: Keys) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDTIMEO, PATIENCE_MS)
        self._socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        server = own.allowed.of(Role.WORKER)[0]
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.reveal())
        self._socket.connect(address)

    def say(self, frames: Sequence[bytes | Buffer]) -> None:
        """Waits while the other side has not taken what was said before."""
        self._socket.send_multipart(list(frames))

    def hear(self) -> list[bytes]:
        return self._socket.recv_multipart()

    def close(self) -> None:
        self._context.destroy(0)


class Linked:
    """One who has said hello on a link, and then says anything."""

    INCARNATION = 5

    def __init__(self, address: str, name: str, own: Keys) -> None:
        self._dealer = Dealer(address, own)
        self._pings = 0
        hello = LinkHello(name, self.INCARNATION, link_versions(), 0, 0, NO_BOUND, True)
        self.say([encode_link(hello)])
        self._session = self._hear_of(LinkHello).incarnation ^ self.INCARNATION

    def say(self, frames: Sequence[bytes]) -> None:
        self._dealer.say(frames)

    def all_was_heard(self) -> None:
        """Wait until all that was said has been read."""
        self._pings += 1
        self.say([encode_link(Ping(self._session, self._pings, 0, NO_BOUND))])
        while self._hear_of(Pong).number != self._pings:
            pass

    def _hear_of(self, kind: type[L]) -> L:
        while not isinstance(message := decode_link(self._dealer.hear()), kind):
            pass
        return message

    def close(self) -> None:
        self._dealer.close()


class InHost:
    """Somebody of this host on a pipe to a node, where a session has its sockets."""

    def __init__(self, directory: Path, node: str, name: str) -> None:
        self._pipe = Stranger(connected(directory, node))
        self._pipe.socket.settimeout(PATIENCE_S)
        self.name = name
        self._asked = 0
        self.say([name.encode()])

    def say(self, frames: Sequence[bytes | Buffer]) -> None:
        """Waits while the other side has not read what was said before, as far as that is kept."""
        self._pipe.say(frames)

    def say_hello(self) -> None:
        hello = Hello(PROTOCOL, self.name, "observer", 1, "", VERSIONS)
        self.say(encode(hello))

    def all_was_heard(self) -> None:
        """Wait until all that was said has been read; who has said no hello is refused one."""
        self._asked += 1
        self.say(encode(Hello(PROTOCOL + 1, self.name, "observer", self._asked, "", {})))
        # Of what was said before, some was refused alike.
        self.hear_of(Refused, f"(pid {self._asked})")

    def is_answered(self) -> None:
        """Ask the agent something, behind all that was said; for who has said hello."""
        self.say(encode(Snapshot(1, [])))
        self.hear_of(Snapshotted)

    def hear_of(self, kind: type[T], text: str = "") -> T:
        """The next message of that kind, in which that text stands."""
        while True:
            message, _ = decode(self._pipe.hear())
            if isinstance(message, kind) and text in str(message):
                return message

    def close(self) -> None:
        self._pipe.socket.close()


def connected(directory: Path, node: str) -> socket.socket:
    """A socket of this host that is connected to a node, and has said nothing."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    made.connect(address_of(directory, node).removeprefix(SCHEME))
    return made


def observe(directory: Path) -> None:
    """Have the agent answer somebody who asks as `monarch ps` does."""
    asks = InHost(directory, AGENT, "observer-0a0a0a0a0a0a")
    try:
        asks.say_hello()
        asks.is_answered()
    finally:
        asks.close()


class AuditLog:
    """What a worker has written down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refused(self) -> dict[str, int]:
        """How often for each reason, as far as it has been written."""
        found: dict[str, int] = {}
        for line in self.path.read_text().splitlines():
            fields = json.loads(line)
            if fields["what"] == "refused":
                facts = json.dumps({k: v for k, v in fields.items() if k not in ("time", "count")})
                found[facts] = max(found.get(facts, 0), fields.get("count", 1))
        return found


def raw(address: tuple[str, int], data: bytes, *, half_closed: bool = True) -> bytes:
    """Connect and say that, and no more; what comes back before the other side hangs up."""
    try:
        connection = socket.create_connection(address, timeout=30)
    except ConnectionError:  # it does not listen yet
        return b""
    return told(connection, [data], half_closed=half_closed)


def told(connection: socket.socket, pieces: Sequence[bytes], *, half_closed: bool = True) -> bytes:
    """Say that on a connection, and no more; what comes back before the other side hangs up."""
    said = b""
    try:
        with connection:
            for piece in pieces:
                connection.sendall(piece)
            if half_closed:
                connection.shutdown(socket.SHUT_WR)
            while got := connection.recv(4096):
                said += got
    except TimeoutError:
        data = b"".join(pieces)
        raise AssertionError(f"neither answered nor hung up on: {data[:500]!r}") from None
    except OSError:  # it was quicker to hang up
        pass
    return said
