"""Who connects to whom over TCP, and the server of this process, made when it is first needed.

Runs in: any process, on threads that may block. Owns: the TcpServer.
Usually who wants bytes dials who has them, at the addresses that others are told of its worker.
A client, and the processes of its host, nobody dials: they may be behind a firewall or a router,
and have no address that means the same elsewhere. But they reach the workers, which is how these
came to take part. So an owner there is asked, over the control plane, to *come*: it connects to
where the asker listens, and shows a *ticket* that says what it comes for. What is moved then, and
who waits for what, is as if it had been dialled. Where the client reaches workers through a gateway
only, it and the processes of its host connect to them through that (`net.tunnel.local_socket`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from monarch._src.config import settings
from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.transports.tcp_channel import Connection
from monarch._src.rdma.transports.tcp_server import Requests, TcpServer
from monarch._src.rdma.transports.tcp_sockets import LOOPBACK, Connector, Opener, Place, Through
from monarch._src.wire.msgpack_text import UNREADABLE

_REMEDY = "register what other hosts are to reach on a worker host that listens at a TCP address"
_ARRIVES_S = 10.0  # from the owner's word that it has connected
_LEAST_S, _LONGEST_S = 0.1, 60.0


class Invitation(msgspec.Struct, frozen=True, array_like=True):
    """Connect to that place within so many seconds, and show the ticket to that incarnation."""

    place: Place
    incarnation: bytes
    ticket: bytes
    within_s: float


def invitation(body: bytes) -> Invitation:
    """ValueError if these bytes are no such thing, or it makes no sense."""
    try:
        found = msgspec.msgpack.decode(body, type=Invitation)
    except UNREADABLE as error:
        raise ValueError(f"this is no invitation: {error}") from None
    if not found.place.hosts or not 0 < found.within_s <= _LONGEST_S:
        raise ValueError(f"an invitation to {found.place.hosts} within {found.within_s} s")
    return found


class Dialling:
    """See the module's text."""

    def __init__(
        self, requests: Requests, host: str, serves_at: Callable[[], tuple[str, list[str]]],
        is_near: Callable[[str], bool], opener: Callable[[], Opener | None] = lambda: None,
        seals: Callable[[], bool] = lambda: settings().rdma_encrypt_tcp,
    ) -> None:  # fmt: skip
        """Args:
        requests: serves what is asked of this process.
        host: what this host is called, in errors.
        serves_at: where to listen for other hosts, and what they are to dial; see MeshSpec.
        is_near: whether a node is of this host.
        opener: what connects to other hosts, if the client is behind a gateway.
        seals: whether what is moved between hosts is sealed.
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
        """Whether anybody has asked for our memory over TCP, or we for that of who comes to us."""
        return self._server is not None

    def _served(self) -> TcpServer:
        with self._lock:
            if self._closed:
                raise OSError("it has left its session")
            if self._server is None:
                self._server = TcpServer(self._requests)
            return self._server

    def _place(self, bind: str, told: list[str], *, sealed: bool) -> Place:
        try:
            return self._served().place(bind, told, sealed=sealed)
        except OSError as error:
            return Place([], why=f"{self._host} could not listen at {bind}: {error}")

    # --- as the owner -----------------------------------------------------------------------------

    def serve(self, peer: str) -> Place:
        """Serve that node, from now on if not before: where it may dial, or why it may not."""
        if self._is_near(peer):
            return self._place(LOOPBACK, [LOOPBACK], sealed=False)
        bind, told = self._serves_at()
        if not told:
            return Place([], why=f"{self._host} is not dialled by other hosts: its client runs "
                         "there")  # fmt: skip
        return self._place(bind, told, sealed=self._seals())

    def come(self, body: bytes) -> bytes:
        """Connect to who has asked for that. What is to be answered: why not, or nothing.

        Raises:
            ValueError: nothing that makes sense was asked.
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

    # --- as who wants bytes -----------------------------------------------------------------------

    def connector(
        self, said: Place, ask_to_come: Callable[[bytes, float], bytes], peer: str = ""
    ) -> Connector:
        """How an owner, which that node is, is reached that has answered `serve` so.

        Raises:
            Broken: neither can be dialled, or this process leaves its session.
        """
        if said.hosts:
            opener = None if self._is_near(peer) else self._opener()
            return said if opener is None else Through(said, opener)
        bind, told = self._serves_at()
        if not told:
            raise TransportFailed(f"{said.why}; nor is {self._host}", _REMEDY)
        own = self._place(bind, told, sealed=self._seals())
        server = self._server
        if server is None or not own.hosts:
            raise TransportFailed(f"{said.why}; and {own.why}", _REMEDY)
        return _Invited(server, own, self._requests.incarnation, ask_to_come)

    def close(self) -> None:
        """Serve nobody any more. Idempotent."""
        with self._lock:
            self._closed = True
            server = self._server
        if server is not None:
            server.close()

    def forked(self) -> None:
        """In a fork of this process: close its copies of what the server has open."""
        self._closed = True
        if self._server is not None:
            self._server.forked()


class _Invited:
    """See `Connector`: the owner is asked to connect to us."""

    def __init__(
        self, server: TcpServer, place: Place, incarnation: bytes,
        ask_to_come: Callable[[bytes, float], bytes],
    ) -> None:  # fmt: skip
        self._server = server
        self._place = place
        self._incarnation = incarnation
        self._ask_to_come = ask_to_come

    @property
    def text(self) -> str:
        return f"the owner, who is to connect to {self._place.text},"

    @property
    def sealed(self) -> bool:
        return self._place.sealed

    def connect(self, deadline: float) -> Connection:
        expected = self._server.expect()
        try:
            # A little less, so that its owner can still say why not.
            within_s = min(max(_LEAST_S, 0.9 * (deadline - time.monotonic())), _LONGEST_S)
            asked = Invitation(self._place, self._incarnation, expected.ticket, within_s)
            answer = self._ask_to_come(msgspec.msgpack.encode(asked), deadline)
            why = msgspec.msgpack.decode(answer, type=str)
            if why:
                raise ConnectionError(why)
            return expected.taken(min(deadline, time.monotonic() + _ARRIVES_S))
        finally:
            self._server.expect_no_more(expected)
