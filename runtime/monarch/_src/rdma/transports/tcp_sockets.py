"""Sockets of the data plane: where they listen, how they are reached, who may speak.

Runs in: any process, on threads that may block. Owns nothing.
Where a process serves, and a *secret*, the control plane tells: encrypted between hosts. On each
connection both sides prove that they know it, and neither says it. So who only listens on the wire
can open no connection of his own, whatever he has heard.

    server    greeting, 16 random bytes
    client    16 random bytes, proof of the secret over both (32 bytes)
    server    proof of the secret over both the other way round (32 bytes)

Where the control plane says so as well, which is between hosts, all that follows is sealed, in
either direction with a key of its own: the secret's over the random bytes of client and server.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol, TypeAlias

import msgspec

from monarch._src.net.hosts.tcp_listener import listener_at
from monarch._src.rdma.handle import same
from monarch._src.rdma.transports.tcp_channel import Connection, Keys, proven, received, until
from monarch._src.wire.encryption import KEY_BYTES

LOOPBACK = "127.0.0.1"
SECRET_BYTES = 32
_NONCE = 16
_PROOF = 32
_GREETING = b"MRDM"
_SOCKET_BYTES = 1 << 22
_SILENT_MS = 20_000  # a host that acknowledges nothing for so long is lost
# Connects to that host and port until then; raises OSError. For who cannot do so directly.
Opener: TypeAlias = "Callable[[str, int, float], socket.socket]"


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a process serves: the addresses to try, in order; none, and why."""

    hosts: list[str]
    port: int = 0
    secret: bytes = b""
    why: str = ""
    sealed: bool = False  # what is moved

    @property
    def text(self) -> str:
        """For errors; the secret is not in it."""
        return " or ".join(f"[{h}]:{self.port}" if ":" in h else f"{h}:{self.port}"
                           for h in self.hosts)  # fmt: skip

    def connect(self, deadline: float) -> Connection:
        """See `dial`."""
        return dial(self, deadline)

    def found_at(self, host: str) -> Place:
        """The same, with that address tried first."""
        others = [other for other in self.hosts if other != host]
        return Place([host, *others], self.port, self.secret, self.why, self.sealed)


class Connector(Protocol):
    """How a connection to who has the memory comes about.

    text: with whom, for errors. sealed: whether only the two ends can read what goes over it.
    """

    @property
    def text(self) -> str: ...

    @property
    def sealed(self) -> bool: ...

    def connect(self, deadline: float) -> Connection:
        """A new one, proven to be with that process.

        Raises:
            OSError: there is none to be had; TimeoutError: in time. Gone, TooLate: see `transport`.
        """
        ...


class StrangerError(ConnectionError):
    """Whoever answers there does not know the secret."""


def listen(host: str) -> socket.socket:
    """A listener at that address, or at every interface for `*`, at a port that is free.

    Raises:
        OSError: it cannot be listened at.
    """
    return listener_at(host, backlog=64)


class Through:
    """Who serves at that place, connected to in another way than directly."""

    def __init__(self, place: Place, opener: Opener) -> None:
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


def dial(place: Place, deadline: float, opener: Opener | None = None) -> Connection:
    """A connection to who serves there, proven to be that.

    Raises:
        OSError: nobody could be reached at any of its addresses; TimeoutError: in time.
        StrangerError: somebody else answers there.
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
    if isinstance(problem, TimeoutError):  # of one address; it is not the whole that is late
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


def _introduced(connection: socket.socket, place: Place) -> Connection:
    hello = bytearray(len(_GREETING) + _NONCE)
    if not received(connection, memoryview(hello)) or not hello.startswith(_GREETING):
        raise StrangerError("what listens there is no peer")
    theirs, ours = bytes(hello[len(_GREETING) :]), os.urandom(_NONCE)
    connection.sendall(ours + _proof(place.secret, theirs, ours))
    proof = bytearray(_PROOF)
    known = received(connection, memoryview(proof))
    if not known or not same(bytes(proof), _proof(place.secret, ours, theirs)):
        raise StrangerError("another process listens where it did")
    if not place.sealed:
        return proven(connection, None)
    by_client, by_server = _keys(place.secret, ours, theirs)
    return proven(connection, Keys(by_client, by_server))


def admit(connection: socket.socket, secret: bytes, *, sealed: bool) -> Connection | None:
    """Who has connected, if he knows the secret."""
    ours = os.urandom(_NONCE)
    connection.sendall(_GREETING + ours)
    hello = bytearray(_NONCE + _PROOF)
    if not received(connection, memoryview(hello)):
        return None
    theirs, proof = bytes(hello[:_NONCE]), bytes(hello[_NONCE:])
    if not same(proof, _proof(secret, ours, theirs)):
        return None
    connection.sendall(_proof(secret, theirs, ours))
    if not sealed:
        return proven(connection, None)
    by_client, by_server = _keys(secret, theirs, ours)
    return proven(connection, Keys(by_server, by_client))


def _proof(secret: bytes, one: bytes, other: bytes) -> bytes:
    return blake2b(one + other, key=secret, digest_size=_PROOF).digest()


def _keys(secret: bytes, of_client: bytes, of_server: bytes) -> tuple[bytes, bytes]:
    """What the client seals with, and what the server does."""
    both = of_client + of_server
    by_client, by_server = (
        blake2b(both, key=secret, person=who, digest_size=KEY_BYTES).digest()
        for who in (b"client seals", b"server seals")
    )
    return by_client, by_server


def tune(connection: socket.socket) -> None:
    """Set what a socket of the data plane has set; one that only leads to it needs none of it."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_USER_TIMEOUT", _SILENT_MS), ("TCP_KEEPIDLE", 5),
                          ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):  # fmt: skip
        if hasattr(socket, option):  # as the system has them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
