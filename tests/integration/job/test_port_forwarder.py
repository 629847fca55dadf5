"""`PortForwarder`: ports of processes, reached through ports of others."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Point,
    ProcMesh,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)
from monarch.job import PortForwarder
from tests.integration.programs import PATIENCE_S

pytestmark = pytest.mark.slow
MIB = 1 << 20


class Echo(Actor):
    """Serves a port that sends back what comes, after its rank."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._rank = current_rank().rank
        threading.Thread(target=self._serve, daemon=True).start()

    @endpoint
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(bytes([self._rank]))
            while data := connection.recv(MIB):
                connection.sendall(data)
            connection.sendall(b"the end")


@pytest.fixture(scope="module")
def meshes() -> Iterator[tuple[ProcMesh, ProcMesh]]:
    """Where the service is, and where it is reached."""
    there = this_host().spawn_procs({"gpus": 2}, name="there")
    here = this_host().spawn_procs({"gpus": 2}, name="here")
    yield there, here
    for mesh in (there, here):
        mesh.stop().get(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def ports(meshes: tuple[ProcMesh, ProcMesh]) -> list[int]:
    """Of the service on each rank."""
    found = meshes[0].spawn("echo", Echo).port.call().get(timeout=PATIENCE_S)
    return list(found.values())


@pytest.fixture
def forwarder() -> Iterator[Any]:
    found: Any = this_proc().spawn("forwarder", PortForwarder)
    yield found
    found.stop().get(timeout=PATIENCE_S)


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def read_all(connection: socket.socket) -> bytes:
    found = bytearray()
    while data := connection.recv(MIB):
        found += data
    return bytes(found)


def forward(forwarder: Any, meshes: tuple[ProcMesh, ProcMesh], ports: list[int]) -> list[str]:
    there, here = meshes

    def port(point: Point) -> int:
        return ports[point.rank]

    done = forwarder.forward.call_one(there, port, here, "127.0.0.1:0")
    return list(done.get(timeout=PATIENCE_S).values())


def test_each_rank_is_reached_through_the_same_rank_of_the_other_mesh(
    forwarder: Any, meshes: tuple[ProcMesh, ProcMesh], ports: list[int]
) -> None:
    addresses = forward(forwarder, meshes, ports)
    assert len(set(addresses)) == 2
    for rank, address in enumerate(addresses):
        with connected(address) as connection:
            connection.sendall(b"hello")
            connection.shutdown(socket.SHUT_WR)  # the other direction goes on
            assert read_all(connection) == bytes([rank]) + b"hello" + b"the end"


def test_much_data_comes_whole_over_several_connections(
    forwarder: Any, meshes: tuple[ProcMesh, ProcMesh], ports: list[int]
) -> None:
    addresses = forward(forwarder, meshes, ports)
    data = os.urandom(8 * MIB)
    found: dict[int, bytes] = {}

    def exchange(number: int) -> None:
        with connected(addresses[number % 2]) as connection:
            sender = threading.Thread(target=send, args=(connection,))
            sender.start()
            found[number] = read_all(connection)
            sender.join()

    def send(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [found[n] == bytes([n % 2]) + data + b"the end" for n in range(4)] == [True] * 4


def test_the_end_of_the_forwarder_breaks_connections_and_frees_the_address(
    meshes: tuple[ProcMesh, ProcMesh], ports: list[int]
) -> None:
    forwarder: Any = this_proc().spawn("forwarder", PortForwarder)
    addresses = forward(forwarder, meshes, ports)
    with connected(addresses[0]) as connection:
        assert connection.recv(1) == b"\0"
        forwarder.stop().get(timeout=PATIENCE_S)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connected(addresses[0])


def test_a_client_that_breaks_off_leaves_the_others_alone(
    forwarder: Any, meshes: tuple[ProcMesh, ProcMesh], ports: list[int]
) -> None:
    addresses = forward(forwarder, meshes, ports)
    first, second = connected(addresses[0]), connected(addresses[0])
    with closing(second):
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        first.close()
        second.sendall(b"still")
        second.shutdown(socket.SHUT_WR)
        assert read_all(second) == b"\0stillthe end"


def test_a_port_at_which_nothing_listens_breaks_the_connection(
    forwarder: Any, meshes: tuple[ProcMesh, ProcMesh]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (address, _) = forward(forwarder, meshes, [port, port])
    with pytest.raises(ConnectionResetError), connected(address) as connection:
        connection.recv(1)


@pytest.mark.parametrize(
    ("port", "address", "why"),
    [
        (0, "127.0.0.1:0", "dst_port is a port from 1 to 65535, not 0"),
        (80, "localhost", r"src_address is 'localhost'; write ADDRESS:PORT"),
        (80, "::1:8080", r"or '\[::1\]:8080'"),
        (80, "127.0.0.1:x", "src_address is '127.0.0.1:x'"),
    ],
)
def test_what_is_no_port_or_address_is_refused(
    forwarder: Any, meshes: tuple[ProcMesh, ProcMesh], port: Any, address: Any, why: str
) -> None:
    there, here = meshes
    with pytest.raises(ActorError, match=why) as raised:
        forwarder.forward.call_one(there, port, here, address).get(timeout=PATIENCE_S)
    assert isinstance(raised.value.exception, ValueError)


def test_what_a_function_of_a_point_returns_is_checked(
    forwarder: Any, meshes: tuple[ProcMesh, ProcMesh]
) -> None:
    there, here = meshes

    def port(point: Point) -> int:
        return 70000 + point.rank

    def address(point: Point) -> str:
        return f"rank {point.rank}"

    for wrong in ((port, "127.0.0.1:0"), (80, address)):
        with pytest.raises(ActorError, match=r"is a port from 1 to 65535|write ADDRESS:PORT"):
            forwarder.forward.call_one(there, wrong[0], here, wrong[1]).get(timeout=PATIENCE_S)


def test_other_shapes_are_an_error(forwarder: Any, meshes: tuple[ProcMesh, ProcMesh]) -> None:
    there, here = meshes
    with pytest.raises(ActorError, match="have the same dims and sizes") as raised:
        forwarder.forward.call_one(there, 80, here.slice(gpus=0), "127.0.0.1:0").get(
            timeout=PATIENCE_S
        )
    assert isinstance(raised.value.exception, ValueError)


def test_an_address_that_is_taken_is_told_and_nothing_is_forwarded(
    forwarder: Any, meshes: tuple[ProcMesh, ProcMesh], ports: list[int]
) -> None:
    there, here = meshes
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        numbers = [free.getsockname()[1], taken.getsockname()[1]]
        free.close()

        def address(point: Point) -> str:
            return f"127.0.0.1:{numbers[point.rank]}"

        with pytest.raises(ActorError, match=r"cannot listen at 127\.0\.0\.1:") as raised:
            forwarder.forward.call_one(there, 80, here, address).get(timeout=PATIENCE_S)
        assert isinstance(raised.value.exception, OSError)
        with pytest.raises(ConnectionRefusedError):
            connected(f"127.0.0.1:{numbers[0]}")
