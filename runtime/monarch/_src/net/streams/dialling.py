"""Makes TCP connections in either direction, and the server of this process on first use.

Runs in: any process, on threads that may block. Owns: the TcpServer.
Usually the process that wants bytes dials their owner, at the addresses that its worker announces.
A client and the processes of its host are not dialled: they may be behind a firewall or a router,
and have no address that is valid elsewhere. But they reach the workers, as they did to start the
session. So such an owner is asked, over the control plane, to *come*: it connects to the address
where the asking process listens, and shows a *ticket* that names the request. From then on the
connection serves as if it had been dialled. If the client reaches workers only through a gateway,
it and the processes of its host connect through that gateway too (`net.tunnel.local_socket`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from monarch._src.config import settings
from monarch._src.net.streams.connection import Connection
from monarch._src.net.streams.server import Requests, TcpServer
from monarch._src.net.streams.sockets import (
    LOOPBACK,
    CannotConnect,
    Connector,
    Opener,
    ServerAddress,
    Through,
)
from monarch._src.wire.msgpack_text import UNREADABLE

_REMEDY = "register memory for other hosts on a worker host that listens at a TCP address"
_ARRIVES_S = 10.0  # from the owner's answer that it has connected
_LEAST_S, _LONGEST_S = 0.1, 60.0


class Invitation(msgspec.Struct, frozen=True, array_like=True):
    """Connect to that place within some seconds, and show the ticket to that incarnation."""

    place: ServerAddress
    incarnation: bytes
    ticket: bytes
    within_s: float


def invitation(body: bytes) -> Invitation:
    """The invitation in these bytes. Raises ValueError if they are not a valid one."""
    try:
        found = msgspec.msgpack.decode(body, type=Invitation)
    except UNREADABLE as error:
        raise ValueError(f"this is not an invitation: {error}") from None
    if not found.place.hosts or not 0 < found.within_s <= _LONGEST_S:
        raise ValueError(f"an invitation to {found.place.hosts} within {found.within_s} s")
    return found


class Dialling:
    """Connects to other processes, and serves them; see the module's docstring."""

    def __init__(
        self, requests: Requests, host: str, serves_at: Callable[[], tuple[str, list[str]]],
        is_near: Callable[[str], bool], opener: Callable[[], Opener | None] = lambda: None,
        seals: Callable[[], bool] = lambda: settings().rdma_encrypt_tcp,
    ) -> None:  # fmt: skip
        """Args:
        requests: serves the requests to this process.
        host: the name of this host, for errors.
        serves_at: the address to listen at for other hosts, and those they dial; see MeshSpec.
        is_near: whether a node is on this host.
        opener: a function that connects to other hosts, if the client is behind a gateway.
        seals: whether connections between hosts are encrypted.
        """
        self._requests = requests
        self._host = host
        self._serves_at = serves_at
        self._is_near = is_near
        self._opener = opener
        self._seals = seals
        self._lock = threading.Lock()
        self._server: TcpServer | None = None
        self._closed = False

    @property
    def serves(self) -> bool:
        """Whether this process listens, to serve its memory or to be connected to by owners."""
        return self._server is not None

    def _served(self) -> TcpServer:
        with self._lock:
            if self._closed:
                raise OSError("it has left its session")
            if self._server is None:
                self._server = TcpServer(self._requests)
            return self._server

    def _place(self, bind: str, told: list[str], *, sealed: bool) -> ServerAddress:
        try:
            return self._served().place(bind, told, sealed=sealed)
        except OSError as error:
            return ServerAddress([], why=f"{self._host} could not listen at {bind}: {error}")

    # --- as the owner -----------------------------------------------------------------------------

    def serve(self, peer: str) -> ServerAddress:
        """Start to serve that node: the place for it to dial, or the reason why it may not."""
        if self._is_near(peer):
            return self._place(LOOPBACK, [LOOPBACK], sealed=False)
        bind, told = self._serves_at()
        if not told:
            return ServerAddress([], why=f"other hosts do not dial {self._host}, where the client "
                         "runs")  # fmt: skip
        return self._place(bind, told, sealed=self._seals())

    def come(self, body: bytes) -> bytes:
        """Connect to the process that sent the invitation. Returns the answer: an error, or "".

        Raises:
            ValueError: the invitation is unreadable.
        """
        asked = invitation(body)
        why = ""
        try:
            self._served().call(
                asked.place, asked.incarnation, asked.ticket, time.monotonic() + asked.within_s,
                self._opener(),
            )  # fmt: skip
        except OSError as error:
            why = f"{self._host} could not connect to {asked.place.text}: {error or 'no answer'}"
        return msgspec.msgpack.encode(why)

    # --- as the process that wants bytes ----------------------------------------------------------

    def connector(
        self, said: ServerAddress, ask_to_come: Callable[[bytes, float], bytes], peer: str = ""
    ) -> Connector:
        """How to reach an owner whose answer to `serve` was `said`; `peer` is its node.

        Raises:
            CannotConnect: neither side can be dialled, or this process is leaving its session.
        """
        if said.hosts:
            opener = None if self._is_near(peer) else self._opener()
            return said if opener is None else Through(said, opener)
        bind, told = self._serves_at()
        if not told:
            raise CannotConnect(f"{said.why}; nor do they dial {self._host}", _REMEDY)
        own = self._place(bind, told, sealed=self._seals())
        server = self._server
        if server is None or not own.hosts:
            raise CannotConnect(f"{said.why}; and {own.why}", _REMEDY)
        return _Invited(server, own, self._requests.incarnation, ask_to_come)

    def close(self) -> None:
        """Stop serving. Idempotent."""
        with self._lock:
            self._closed = True
            server = self._server
        if server is not None:
            server.close()

    def forked(self) -> None:
        """In a fork of this process: close the server's sockets here."""
        self._closed = True
        if self._server is not None:
            self._server.forked()


class _Invited:
    """A `Connector` that asks the owner to connect to this process."""

    def __init__(
        self, server: TcpServer, place: ServerAddress, incarnation: bytes,
        ask_to_come: Callable[[bytes, float], bytes],
    ) -> None:  # fmt: skip
        self._server = server
        self._place = place
        self._incarnation = incarnation
        self._ask_to_come = ask_to_come

    @property
    def text(self) -> str:
        return f"the owner, which has to connect to {self._place.text},"

    @property
    def sealed(self) -> bool:
        return self._place.sealed

    def connect(self, deadline: float) -> Connection:
        expected = self._server.expect()
        try:
            # A little less, so that the owner can still report an error.
            within_s = min(max(_LEAST_S, 0.9 * (deadline - time.monotonic())), _LONGEST_S)
            asked = Invitation(self._place, self._incarnation, expected.ticket, within_s)
            answer = self._ask_to_come(msgspec.msgpack.encode(asked), deadline)
            why = msgspec.msgpack.decode(answer, type=str)
            if why:
                raise ConnectionError(why)
            return expected.taken(min(deadline, time.monotonic() + _ARRIVES_S))
        finally:
            self._server.expect_no_more(expected)
