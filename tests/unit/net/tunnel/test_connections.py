"""The two ends of tunnels with real sockets, and a link between them that is two queues."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from monarch._src.net.tunnel import connections
from monarch._src.net.tunnel.connections import Tunnels
from monarch._src.net.tunnel.state.tunnel import WINDOW, TunnelMessage
from monarch._src.wire.frames import Payload

PATIENCE_S = 20.0
LINK = "link"


class Pair:
    """A near end and a far end. `room`: whether the link from that side takes anything."""

    def __init__(self) -> None:
        self.room = {"near": True, "far": True}
        self.queues: dict[str, deque[tuple[TunnelMessage, Payload]]] = {
            "near": deque(), "far": deque(),
        }  # fmt: skip
        self.near = Tunnels(self.says("near"), lambda _: self.room["near"], near=True)
        self.far = Tunnels(self.says("far"), lambda _: self.room["far"], near=False)
        self.selector = selectors.DefaultSelector()
        for end in (self.near, self.far):
            self.selector.register(end.fileno(), selectors.EVENT_READ)
        self.answers: list[tuple[str, str]] = []

    def says(self, side: str) -> Callable[..., None]:
        return lambda _link, message, payload: self.queues[side].append((message, payload))

    def turn(self) -> None:
        self.near.work()
        self.far.work()
        for side, other in (("near", self.far), ("far", self.near)):
            while self.queues[side]:
                other.on_message(LINK, *self.queues[side].popleft())

    def until(self, is_so: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end
            self.turn()
            if not any(self.queues.values()):
                self.selector.select(0.01)

    def ask(self, address: str, mine: socket.socket | None) -> None:
        def done(numeric: str, why: str) -> socket.socket | None:
            self.answers.append((numeric, why))
            if why and mine is not None:
                mine.close()
            return None if why else mine

        self.near.open(LINK, address, done)

    def stream_to(self, address: str) -> socket.socket:
        """Our side of a stream, of which the other end of the pair has the other."""
        ours, mine = socket.socketpair()
        self.ask(address, mine)
        self.until(lambda: self.answers)
        assert self.answers.pop()[1] == ""
        ours.setblocking(False)
        return ours

    def close(self) -> None:
        self.near.close()
        self.far.close()
        self.selector.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


def at(server: socket.socket, host: str = "127.0.0.1") -> str:
    return f"tcp://{host}:{server.getsockname()[1]}"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_bytes_go_both_ways_whole_and_in_order(
    pair: Pair, server: socket.socket, host: str
) -> None:
    ours = pair.stream_to(at(server, host))
    theirs, _ = server.accept()
    with ours, theirs:
        theirs.setblocking(False)
        sent = bytes(range(256)) * (3 * WINDOW // 256)
        for writer, reader in ((ours, theirs), (theirs, ours)):
            left, came = memoryview(sent), bytearray()

            def move(
                writer: socket.socket = writer, reader: socket.socket = reader,
                came: bytearray = came,
            ) -> bool:  # fmt: skip
                nonlocal left
                try:
                    left = left[writer.send(left) :] if left else left
                except BlockingIOError:
                    pass
                try:
                    came += reader.recv(1 << 20)
                except BlockingIOError:
                    pass
                return len(came) == len(sent)

            pair.until(move)
            assert came == sent


def test_it_says_what_the_address_is_in_numbers(pair: Pair, server: socket.socket) -> None:
    pair.ask(at(server, "localhost"), None)
    pair.until(lambda: pair.answers)
    assert pair.answers == [(at(server), "")]
    pair.until(lambda: not len(pair.far))


def test_who_reads_nothing_holds_up_its_writer_and_costs_a_window(
    pair: Pair, server: socket.socket
) -> None:
    ours = pair.stream_to(at(server))
    other = pair.stream_to(at(server))
    theirs, _ = server.accept()
    others, _ = server.accept()
    with ours, theirs, other, others:
        quiet = 0
        while quiet < 50:
            try:
                ours.send(bytes(1 << 16))
                quiet = 0
            except BlockingIOError:
                quiet += 1
            pair.turn()
            assert pair.far.held <= WINDOW
        assert pair.far.held > 0
        other.send(b"mine goes on")
        others.setblocking(True)
        others.settimeout(0.01)
        came = bytearray()

        def heard() -> bool:
            try:
                came.extend(others.recv(100))
            except TimeoutError:
                pass
            return came == b"mine goes on"

        pair.until(heard)


def test_who_hangs_up_on_a_stream_that_nobody_reads_is_noticed_in_the_end(
    pair: Pair, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = pair.stream_to(at(server))
    theirs, _ = server.accept()
    with theirs:
        quiet = 0
        while quiet < 50:
            try:
                ours.send(bytes(1 << 16))
                quiet = 0
            except BlockingIOError:
                quiet += 1
            pair.turn()
        assert pair.near.next_deadline() is not None
        ours.close()
        monkeypatch.setattr(connections, "SWEEP_S", 0.01)
        monkeypatch.setattr(connections, "HUNG_UP_S", 0.01)
        pair.near._sweep_at = 0.0  # pyright: ignore[reportPrivateUsage]
        pair.until(lambda: not len(pair.near))
    pair.until(lambda: not len(pair.far))


def test_nothing_is_read_while_the_link_is_full_and_all_of_it_afterwards(
    pair: Pair, server: socket.socket
) -> None:
    ours = pair.stream_to(at(server))
    theirs, _ = server.accept()
    with ours, theirs:
        theirs.setblocking(False)
        pair.room["near"] = False
        pair.near.on_room(LINK)
        ours.send(b"later")
        for _ in range(20):
            pair.turn()
        with pytest.raises(BlockingIOError):
            theirs.recv(10)
        pair.room["near"] = True
        pair.near.on_room(LINK)
        pair.until(lambda: _came(theirs, b"later"))


def _came(reader: socket.socket, wanted: bytes) -> bool:
    try:
        return reader.recv(100) == wanted
    except BlockingIOError:
        return False


def test_the_end_of_either_side_is_that_of_the_other_behind_what_was_said(
    pair: Pair, server: socket.socket
) -> None:
    for first in (0, 1):
        ours = pair.stream_to(at(server))
        theirs, _ = server.accept()
        theirs.setblocking(False)
        sides = (ours, theirs)
        sides[first].send(b"goodbye")
        sides[first].close()
        other = sides[1 - first]
        pair.until(lambda other=other: _came(other, b"goodbye"))
        pair.until(lambda other=other: _came(other, b""))
        other.close()
        pair.until(lambda: not len(pair.near) and not len(pair.far))


def test_where_nobody_listens_that_is_told_as_the_gateway_sees_it(pair: Pair) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        where = at(unused)
        pair.ask(where, None)
        pair.until(lambda: pair.answers)
    [(numeric, why)] = pair.answers
    assert numeric == ""
    assert where in why
    assert "as resolved by the gateway" in why
    assert "ECONNREFUSED" in why
    assert not len(pair.near)
    assert not len(pair.far)


def test_a_name_that_nobody_knows_there_is_told(pair: Pair) -> None:
    pair.ask("tcp://no-such-host.invalid:26600", None)
    pair.until(lambda: pair.answers)
    assert "cannot resolve the name" in pair.answers[0][1]


def test_who_does_not_answer_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "DIAL_S", 0.05)
    resolving = threading.Event()
    monkeypatch.setattr(connections, "resolve", lambda _: resolving.wait(PATIENCE_S) and [])
    pair.ask("tcp://slow-name:26600", None)
    pair.until(lambda: pair.answers)
    resolving.set()
    assert "was not resolved in time" in pair.answers[0][1]
    assert pair.far.next_deadline() is None


def test_the_end_of_the_link_closes_all_connections(pair: Pair, server: socket.socket) -> None:
    ours = pair.stream_to(at(server))
    theirs, _ = server.accept()
    with ours, theirs:
        pair.ask(at(server), None)  # under way
        pair.near.cut(LINK, "the gateway is lost")
        pair.far.cut(LINK, "the gateway is lost")
        assert pair.answers == [("", "the gateway is lost")]
        ours.setblocking(True)
        ours.settimeout(PATIENCE_S)
        theirs.settimeout(PATIENCE_S)
        assert ours.recv(10) == b""
        assert theirs.recv(10) == b""
        assert not len(pair.near)
        assert not len(pair.far)


def test_a_gateway_takes_so_many_clients_and_no_more(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_TUNNELS", 1)
    heard: list[TunnelMessage] = []
    far = Tunnels(
        lambda _link, message, _payload: heard.append(message),  # pyright: ignore[reportArgumentType]
        lambda _: True, near=False,
    )  # fmt: skip
    try:
        opening = connections.TunnelOpen(1, at(server))
        far.on_message("one", opening, Payload(b""))
        far.on_message("two", opening, Payload(b""))
        [refused] = heard
        assert isinstance(refused, connections.TunnelOpened)
        assert "which is its limit" in refused.why
        far.cut("one", "it has left")
        far.on_message("two", opening, Payload(b""))
        assert len(far) == 1
    finally:
        far.close()
