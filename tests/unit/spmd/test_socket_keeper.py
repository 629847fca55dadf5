"""The host agent's copies of a rank's sockets: kept, closed when the rank says so, drained."""

from __future__ import annotations

import selectors
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._src.spmd import agent_part
from monarch._src.spmd.agent_part import SocketKeeper
from monarch._src.spmd.socket_updates import LARGEST, MOST_SOCKETS, Update, encode, updates
from monarch._src.wire.frames import NO_PAYLOAD
from monarch._src.wire.messages import KeepSockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the agent keeps sockets on Linux")
PATIENCE_S = 60
KEY = b"this end, that end"


class Keeper:
    """A SocketKeeper with a loop of its own, and the rank's end of one connection to it."""

    def __init__(self, path: Path) -> None:
        self.selector = selectors.DefaultSelector()
        view: Any = SimpleNamespace(selector=self.selector)
        self.part = SocketKeeper(view)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(1)
            self.part.handlers[KeepSockets]("rank", KeepSockets(str(path)), NO_PAYLOAD)
            self.rank, _ = listener.accept()

    def tell(self, keep: dict[bytes, socket.socket], release: list[bytes]) -> None:
        update = Update(list(keep), release)
        socket.send_fds(self.rank, [encode(update)], [each.fileno() for each in keep.values()])
        self.step()

    def step(self) -> None:
        """Handle ready connections, as the agent's loop does; wait until one is ready."""
        ready = self.selector.select(PATIENCE_S)
        assert ready
        for key, _ in ready:
            key.data()
        self.part.after_poll()

    def close(self) -> None:
        self.rank.close()
        for key in list(self.selector.get_map().values()):
            self.selector.unregister(key.fileobj)
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.selector.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path / "keep")
    yield made
    made.close()


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection: the rank's end, and the peer's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        peer.settimeout(PATIENCE_S)
        own, _ = server.accept()
    yield own, peer
    own.close()
    peer.close()


def test_a_peer_can_write_to_a_rank_that_has_died_with_data_unread(
    keeper: Keeper, connection: tuple[socket.socket, socket.socket]
) -> None:
    """More than the kernel buffers: what arrives is read and dropped."""
    own, peer = connection
    keeper.tell({KEY: own}, [])
    own.sendall(b"ready to receive")
    peer.sendall(b"unread")
    own.close()
    keeper.rank.close()
    keeper.step()
    assert peer.recv(100) == b"ready to receive"
    peer.setblocking(False)
    left = 64 << 20
    while left:
        try:
            left -= peer.send(bytes(min(left, 1 << 20)))
        except BlockingIOError:
            keeper.step()
    peer.close()
    while any(rank.copies for rank in keeper.part._ranks):
        keeper.step()
    keeper.part.after_poll()
    assert keeper.part._ranks == []


def test_copies_are_closed_some_time_after_the_death(
    keeper: Keeper,
    connection: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, peer = connection
    keeper.tell({KEY: own}, [])
    own.close()
    keeper.rank.close()
    keeper.step()
    deadline = keeper.part.next_deadline()
    assert deadline is not None
    monkeypatch.setattr(agent_part.time, "monotonic", lambda: deadline)
    keeper.part.after_poll()
    assert peer.recv(1) == b""
    assert keeper.part.next_deadline() is None


def test_a_copy_that_the_rank_releases_is_closed(
    keeper: Keeper, connection: tuple[socket.socket, socket.socket]
) -> None:
    own, peer = connection
    keeper.tell({KEY: own}, [])
    own.close()
    keeper.tell({}, [KEY])
    assert peer.recv(1) == b""


def test_a_socket_is_not_kept_if_few_descriptors_are_left(
    keeper: Keeper,
    connection: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, peer = connection
    monkeypatch.setattr(agent_part, "free_descriptors", lambda: 10)
    keeper.tell({KEY: own}, [])
    own.close()
    assert peer.recv(1) == b""


def test_a_rank_that_does_not_listen_costs_nothing(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        view: Any = SimpleNamespace(selector=selector)
        part = SocketKeeper(view)
        part.handlers[KeepSockets]("rank", KeepSockets(str(tmp_path / "absent")), NO_PAYLOAD)
        assert not selector.get_map()


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ([], [], []),
        ([b"a"], [b"a"], []),
        ([b"a", b"b"], [b"b", b"c"], [Update([b"c"], [b"a"])]),
        ([b"a"], [], [Update([], [b"a"])]),
    ],
)
def test_updates_name_new_and_gone_sockets(
    before: list[bytes], now: list[bytes], told: list[Update]
) -> None:
    assert list(updates(before, now)) == told


def test_many_sockets_come_in_several_updates_that_fit() -> None:
    many = [number.to_bytes(64, "big") for number in range(3 * MOST_SOCKETS + 1)]
    told = list(updates(many[:5], many[5:]))
    assert sorted(key for update in told for key in update.keep) == many[5:]
    assert [key for update in told for key in update.release] == many[:5]
    assert max(len(encode(update)) for update in told) < LARGEST
    assert max(len(update.keep) for update in told) == MOST_SOCKETS
