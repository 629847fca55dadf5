"""Memory of a host that nobody dials: its owner connects to who wants it, and serves it there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy
import pytest

from monarch._src.net.streams.dialling import Dialling, Invitation
from monarch._src.net.streams.sockets import LOOPBACK, CannotConnect, ServerAddress
from monarch._src.rdma.handle import VERSION, Handle
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports import tcp_client
from monarch._src.rdma.transports.base import DeadlineExceeded, Piece, TransportFailed
from monarch._src.rdma.transports.tcp_client import TcpLink
from monarch._src.rdma.transports.tcp_regions import RegionRequests
from tests.integration.rdma.parties import is_pattern, pattern

LATE_S = 60.0


class Side:
    """A process as far as its sockets know it."""

    def __init__(self, name: str, *told: str) -> None:
        self.regions = Regions(name, "nowhere")
        self.dialling = Dialling(
            RegionRequests(self.regions),
            name,
            lambda: (LOOPBACK if told else "", list(told)),
            lambda _: False,
        )  # fmt: skip

    def share(self, value: Any) -> Handle:
        memory = memory_of(value)
        slot, key, shared = self.regions.register(memory)
        return Handle(
            VERSION, self.regions.owner, slot, key, memory.size, memory.readonly, shared, "a", "a"
        )

    def close(self) -> None:
        self.dialling.close()
        self.regions.close()


@pytest.fixture
def side() -> Iterator[Callable[..., Side]]:
    with ExitStack() as stack:

        def made(name: str, *told: str) -> Side:
            one = Side(name, *told)
            stack.callback(one.close)
            return one

        yield made


def late() -> float:
    return time.monotonic() + LATE_S


def ask_of(owner: Side) -> Callable[[bytes, float], bytes]:
    return lambda body, _: owner.dialling.come(body)


def piece(handle: Handle, value: Any) -> Piece:
    memory = memory_of(value)
    return Piece(handle, 0, memory.address, memory.size, memory)


def test_an_owner_that_nobody_can_dial_connects_to_who_asks_and_serves_it_there(
    side: Callable[..., Side],
) -> None:
    owner, mover = side("laptop"), side("worker", LOOPBACK)
    asked: list[float] = []

    def ask_to_come(body: bytes, deadline: float) -> bytes:
        asked.append(deadline)
        return owner.dialling.come(body)

    connector = mover.dialling.connector(owner.dialling.serve("worker"), ask_to_come)
    link = TcpLink(owner.regions.owner, connector, lambda: False, late())
    memory = pattern(3_000_001)
    handle = owner.share(memory)
    rooms = [numpy.zeros(len(memory), numpy.uint8) for _ in range(4)]
    movers = [
        threading.Thread(target=link.read_into, args=([piece(handle, room)], late()))
        for room in rooms
    ]
    for one in movers:
        one.start()
    for one in movers:
        one.join()
    assert all(is_pattern(room, 0) for room in rooms)
    link.write_from([piece(handle, pattern(len(memory), 7))], late())
    assert is_pattern(memory, 7)
    assert 1 <= len(asked) <= len(rooms)  # connections are kept
    link.close()


def test_where_neither_can_be_dialled_that_is_said_with_what_would_do(
    side: Callable[..., Side],
) -> None:
    owner, mover = side("laptop"), side("desktop")
    with pytest.raises(
        CannotConnect, match=r"do not dial laptop.*nor do they dial desktop"
    ) as told:
        mover.dialling.connector(owner.dialling.serve("worker"), ask_of(owner))
    assert "on a worker host" in told.value.remedy


def test_an_owner_that_cannot_connect_says_where_and_why(side: Callable[..., Side]) -> None:
    owner, mover = side("laptop"), side("worker", LOOPBACK)
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]

    def ask_to_come(body: bytes, deadline: float) -> bytes:
        nobody = Invitation(
            ServerAddress([LOOPBACK], port, bytes(32)), bytes(16), bytes(16), LATE_S
        )
        return owner.dialling.come(msgspec.msgpack.encode(nobody))

    connector = mover.dialling.connector(owner.dialling.serve("worker"), ask_to_come)
    with pytest.raises(
        TransportFailed, match=f"laptop could not connect to {LOOPBACK}:{port}.*refused"
    ):
        TcpLink(owner.regions.owner, connector, lambda: False, late())


def test_a_port_that_says_nothing_is_an_error_that_names_it_unless_the_deadline_is_sooner(
    side: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = side("worker").regions.owner
    with socket.create_server((LOOPBACK, 0)) as silent:
        place = ServerAddress([LOOPBACK], silent.getsockname()[1], bytes(32))
        with pytest.raises(DeadlineExceeded):
            TcpLink(owner, place, lambda: False, time.monotonic() + 0.01)
        monkeypatch.setattr(tcp_client, "HELLO_S", 0.01)
        with pytest.raises(
            TransportFailed, match=f"{LOOPBACK}:{place.port} did not answer"
        ) as told:
            TcpLink(owner, place, lambda: False, late())
    assert "firewall" in told.value.why.remedy


def test_who_comes_when_nobody_waits_any_more_is_hung_up_on_and_the_next_is_not(
    side: Callable[..., Side],
) -> None:
    owner, mover = side("laptop"), side("worker", LOOPBACK)
    bodies: list[bytes] = []

    def too_late(body: bytes, deadline: float) -> bytes:
        bodies.append(body)
        raise TimeoutError

    connector = mover.dialling.connector(owner.dialling.serve("worker"), too_late)
    with pytest.raises(TimeoutError):
        connector.connect(late())
    ask_of(owner)(bodies[0], late())  # it comes all the same
    connector = mover.dialling.connector(owner.dialling.serve("worker"), ask_of(owner))
    TcpLink(owner.regions.owner, connector, lambda: False, late()).close()


def test_who_leaves_its_session_waits_for_no_connection(side: Callable[..., Side]) -> None:
    owner, mover = side("laptop"), side("worker", LOOPBACK)

    def leave_meanwhile(body: bytes, deadline: float) -> bytes:
        mover.dialling.close()
        return b"\xa0"  # it has come, it says

    connector = mover.dialling.connector(owner.dialling.serve("worker"), leave_meanwhile)
    with pytest.raises(ConnectionError, match="did not arrive"):
        connector.connect(late())
    with pytest.raises(CannotConnect, match="has left its session"):
        mover.dialling.connector(owner.dialling.serve("worker"), ask_of(owner))


@pytest.mark.parametrize(
    "asked",
    [
        Invitation(ServerAddress([], 1, bytes(32)), bytes(16), bytes(16), 1.0),
        Invitation(ServerAddress([LOOPBACK], 1, bytes(32)), bytes(16), bytes(16), float("nan")),
        Invitation(ServerAddress([LOOPBACK], 1, bytes(32)), bytes(16), bytes(16), 1e300),
        (1, 2, 3),
    ],
)
def test_what_is_no_invitation_is_refused(side: Callable[..., Side], asked: object) -> None:
    with pytest.raises(ValueError, match="invitation"):
        side("laptop").dialling.come(msgspec.msgpack.encode(asked))
