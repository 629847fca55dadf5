"""Sockets of the data plane: listening, dialling, authentication.

Runs in: any process, on threads that may block. Owns nothing.
The control plane, which is encrypted between hosts, announces the address of a server and a
*secret*. On each connection both sides prove that they know the secret, without sending it. So an
eavesdropper cannot open a connection, whatever it has recorded.

    server    greeting, 16 random bytes
    client    16 random bytes, proof of the secret over both (32 bytes)
    server    proof of the secret over both the other way round (32 bytes)

If the announcement says so, which it does between hosts, the rest of the connection is encrypted.
Each direction has its own key, derived from the secret and the random bytes of both sides.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol, TypeAlias

import msgspec

from monarch._src.net.streams.connection import Connection, StreamKeys, proven, received, until
from monarch._src.wire.encryption import KEY_BYTES, same_secret

LOOPBACK = "127.0.0.1"
SECRET_BYTES = 32
_NONCE = 16
_PROOF = 32
_GREETING = b"MRDM"
_SOCKET_BYTES = 1 << 22
_SILENT_MS = 20_000  # a host that acknowledges nothing for that long is lost
# Connects to that host and port by a deadline, where dialling is impossible; raises OSError.
Opener: TypeAlias = "Callable[[str, int, float], socket.socket]"


class CannotConnect(ConnectionError):
    """Neither of two processes can dial the other, or this one is leaving its session."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class ServerAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where a process serves: addresses to try in order; or none, and the reason."""

    hosts: list[str]
    port: int = 0
    secret: bytes = b""
    why: str = ""
    sealed: bool = False  # whether transfers are encrypted

    @property
    def text(self) -> str:
        """A description for errors, without the secret."""
        return " or ".join(f"[{h}]:{self.port}" if ":" in h else f"{h}:{self.port}"
                           for h in self.hosts)  # fmt: skip

    def connect(self, deadline: float) -> Connection:
        """See `dial`."""
        return dial(self, deadline)

    def found_at(self, host: str) -> ServerAddress:
        """The same, with that address tried first."""
        others = [other for other in self.hosts if other != host]
        return ServerAddress([host, *others], self.port, self.secret, self.why, self.sealed)


class Connector(Protocol):
    """Makes connections to the owner of memory.

    text: a description of the owner, for errors. sealed: whether connections are encrypted.
    """

    @property
    def text(self) -> str: ...

    @property
    def sealed(self) -> bool: ...

    def connect(self, deadline: float) -> Connection:
        """A new, authenticated connection to that process.

        Raises:
            OSError: it cannot be made; TimeoutError: not by the deadline.
            OwnerGone, DeadlineExceeded: see `base`.
        """
        ...


class StrangerError(ConnectionError):
    """The process that answers at the address does not know the secret."""


def listen(host: str) -> socket.socket:
    """A listener at that address, or on every interface for `*`, at a free port.

    Raises:
        OSError: it is impossible to listen there.
    """
    return listener_at(host, backlog=64)


class Through:
    """A `Connector` to that place by an opener, such as a tunnel."""

    def __init__(self, place: ServerAddress, opener: Opener) -> None:
        self._place = place
        self._opener = opener

    @property
    def text(self) -> str:
        return f"{self._place.text} through the gateway"

    @property
    def sealed(self) -> bool:
        return self._place.sealed

    def connect(self, deadline: float) -> Connection:
        """See `dial`."""
        return dial(self._place, deadline, self._opener)


def dial(place: ServerAddress, deadline: float, opener: Opener | None = None) -> Connection:
    """An authenticated connection to the process that serves at that place.

    Raises:
        OSError: no process answered at any of its addresses; TimeoutError: by the deadline.
        StrangerError: another process answers there.
    """
    problem: OSError | None = None
    for at, host in enumerate(place.hosts):
        share = (deadline - time.monotonic()) / (len(place.hosts) - at)
        connection: socket.socket | None = None
        try:
            connection = _connected(host, place.port, time.monotonic() + share, opener)
            until(connection, deadline)
            return _introduced(connection, place)
        except OSError as error:
            if connection is not None:
                connection.close()
            if time.monotonic() >= deadline:
                raise
            problem = error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
    assert problem is not None
    if isinstance(problem, TimeoutError):  # one address timed out, not the whole attempt
        raise ConnectionError(f"no answer from {place.text}") from problem
    raise problem


def _connected(host: str, port: int, deadline: float, opener: Opener | None) -> socket.socket:
    if opener is not None:
        return opener(host, port, deadline)
    connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        tune(connection)
        until(connection, deadline)
        connection.connect((host, port))
    except BaseException:
        connection.close()
        raise
    return connection


def _introduced(connection: socket.socket, place: ServerAddress) -> Connection:
    hello = bytearray(len(_GREETING) + _NONCE)
    if not received(connection, memoryview(hello)) or not hello.startswith(_GREETING):
        raise StrangerError("the process that listens there is not a peer")
    theirs, ours = bytes(hello[len(_GREETING) :]), os.urandom(_NONCE)
    connection.sendall(ours + _proof(place.secret, theirs, ours))
    proof = bytearray(_PROOF)
    known = received(connection, memoryview(proof))
    if not known or not same_secret(bytes(proof), _proof(place.secret, ours, theirs)):
        raise StrangerError("another process listens at its address now")
    if not place.sealed:
        return proven(connection, None)
    by_client, by_server = _keys(place.secret, ours, theirs)
    return proven(connection, StreamKeys(by_client, by_server))


def admit(connection: socket.socket, secret: bytes, *, sealed: bool) -> Connection | None:
    """The connection of that socket, if the other side knows the secret; otherwise None."""
    ours = os.urandom(_NONCE)
    connection.sendall(_GREETING + ours)
    hello = bytearray(_NONCE + _PROOF)
    if not received(connection, memoryview(hello)):
        return None
    theirs, proof = bytes(hello[:_NONCE]), bytes(hello[_NONCE:])
    if not same_secret(proof, _proof(secret, ours, theirs)):
        return None
    connection.sendall(_proof(secret, theirs, ours))
    if not sealed:
        return proven(connection, None)
    by_client, by_server = _keys(secret, theirs, ours)
    return proven(connection, StreamKeys(by_server, by_client))


def _proof(secret: bytes, one: bytes, other: bytes) -> bytes:
    return blake2b(one + other, key=secret, digest_size=_PROOF).digest()


def _keys(secret: bytes, of_client: bytes, of_server: bytes) -> tuple[bytes, bytes]:
    """The keys with which the client and the server encrypt."""
    both = of_client + of_server
    by_client, by_server = (
        blake2b(both, key=secret, person=who, digest_size=KEY_BYTES).digest()
        for who in (b"client seals", b"server seals")
    )
    return by_client, by_server


def tune(connection: socket.socket) -> None:
    """Set the options of a socket of the data plane. A local socket to a tunnel needs none."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_USER_TIMEOUT", _SILENT_MS), ("TCP_KEEPIDLE", 5),
                          ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):  # fmt: skip
        if hasattr(socket, option):  # systems differ
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)


def listener_at(host: str, backlog: int) -> socket.socket:
    """A listener at that address, or on every interface for `*`, at a free port.

    `backlog`: how many connections may wait to be accepted.

    Raises:
        OSError: it is impossible to listen there.
    """
    if host != "*":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, 0), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    return socket.create_server(("", 0), backlog=backlog)
