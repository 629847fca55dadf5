"""Connections over real sockets: what one side sends arrives whole, and sealed or as it is."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._src.net.streams import connection as module
from monarch._src.net.streams.connection import CHUNK, Connection, StreamKeys, proven
from monarch._src.net.streams.server import TcpServer
from monarch._src.net.streams.sockets import LOOPBACK, ServerAddress, dial
from monarch._src.rdma.handle import VERSION, Handle
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports.base import Piece, TransportFailed
from monarch._src.rdma.transports.tcp_client import TcpLink
from monarch._src.rdma.transports.tcp_regions import RegionRequests
from monarch._src.wire import encryption as sealed_bytes
from monarch._src.wire.encryption import HEAD, RECORD, TAG

SIZES = [1, HEAD, TAG, 4096, RECORD - 1, RECORD, RECORD + 1, 3 * RECORD + 5, CHUNK + 1]
PATIENCE_S = 60.0
KEYS = StreamKeys(bytes(32), bytes([1]) * 32)
Pair = tuple[Connection, Connection]


def ends(keys: StreamKeys | None) -> Pair:
    one, other = socket.socketpair()
    theirs = None if keys is None else StreamKeys(keys.receives, keys.sends)
    made = proven(one, keys), proven(other, theirs)
    for end in made:
        end.limit(PATIENCE_S)
    return made


@pytest.fixture(params=["open", "sealed"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = ends(KEYS if request.param == "sealed" else None)
    yield made
    for end in made:
        end.close()


@pytest.fixture
def sealed() -> Iterator[tuple[Connection, socket.socket]]:
    """One end of a sealed connection, and the bare socket that leads there."""
    one, other = socket.socketpair()
    made = proven(one, KEYS)
    made.limit(PATIENCE_S)
    yield made, other
    made.close()
    other.close()


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("size", SIZES)
def test_bytes_of_any_number_arrive_both_ways_at_once(pair: Pair, size: int) -> None:
    sent = [os.urandom(size) for _ in pair]
    came = [bytearray(size) for _ in pair]
    threads = [
        beside(lambda end=end, unit=unit: end.send(unit, time.monotonic() + PATIENCE_S))
        for end, unit in zip(pair, sent, strict=True)
    ]
    got = [
        end.receive(memoryview(room), time.monotonic() + PATIENCE_S)
        for end, room in zip(reversed(pair), came, strict=True)
    ]
    for thread in threads:
        thread.join()
    assert got == [True, True]
    assert [bytes(one) for one in came] == sent


def test_what_is_sent_in_parts_is_received_in_one_go_and_nothing_of_the_next(pair: Pair) -> None:
    parts = [os.urandom(size) for size in (16, 2 * RECORD + 7, 1, RECORD, 4096)]
    following = os.urandom(20)

    def send() -> None:
        for part in (*parts, following):
            pair[0].send(part)

    thread = beside(send)
    whole, room = bytearray(sum(map(len, parts))), bytearray(20)
    assert pair[1].receive(memoryview(whole))
    assert pair[1].receive(memoryview(room))
    thread.join()
    assert bytes(whole) == b"".join(parts)
    assert bytes(room) == following


@pytest.mark.parametrize("each", [1, 1000, RECORD - 1, RECORD, RECORD + 1, CHUNK])
def test_what_is_sent_in_one_go_is_received_in_parts(pair: Pair, each: int) -> None:
    sent = [os.urandom(size) for size in (min(5 * each, 2 * CHUNK) + 7, 3)]
    thread = beside(lambda: [pair[0].send(one) for one in sent])
    for one in sent:
        came = bytearray(len(one))
        for at in range(0, len(one), each):
            assert pair[1].receive(memoryview(came)[at : at + each])
        assert came == one
    thread.join()
    opened: Any = getattr(pair[1], "_opened", memoryview(b""))
    assert len(opened.obj) == 0, "it keeps no record"


def test_parts_that_were_not_received_yet_are_the_next_object_s(pair: Pair) -> None:
    pair[0].send(b"one and two")
    room = bytearray(4)
    assert pair[1].receive(memoryview(room))
    assert room == b"one "
    other = pair[1].again()
    pair[1].close()
    other.limit(PATIENCE_S)
    rest = bytearray(7)
    assert other.receive(memoryview(rest))
    assert rest == b"and two"
    other.close()


def test_a_connection_goes_on_as_another_object(pair: Pair) -> None:
    room = bytearray(3)
    for _ in range(3):
        pair[0].send(b"one")
        assert pair[1].receive(memoryview(room))
    other = pair[1].again()
    pair[1].close()
    other.limit(PATIENCE_S)
    pair[0].send(b"two")
    assert other.receive(memoryview(room))
    assert room == b"two"
    other.close()


@pytest.mark.parametrize("sent", [0, 1, HEAD + 10])
def test_who_hangs_up_is_heard(pair: Pair, sent: int) -> None:
    pair[0]._socket.sendall(struct.pack(">I", 4096)[:sent] + bytes(max(0, sent - HEAD)))
    pair[0].hang_up()
    assert not pair[1].receive(memoryview(bytearray(4096)))


def test_a_trickle_is_too_late(pair: Pair) -> None:
    pair[0]._socket.sendall(struct.pack(">I", 4096))
    with pytest.raises(TimeoutError):
        pair[1].receive(memoryview(bytearray(4096)), time.monotonic() - 1)


def test_a_deadline_that_is_past_sends_nothing(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        pair[0].send(b"late", time.monotonic() - 1)
    pair[0].send(b"next")
    room = bytearray(4)
    assert pair[1].receive(memoryview(room))
    assert room == b"next"


def on_the_wire(unit: bytes) -> bytes:
    """What `unit` is sealed as by the other end of `sealed`."""
    one, other = socket.socketpair()
    end = proven(one, StreamKeys(KEYS.receives, KEYS.sends))

    def send() -> None:
        end.send(unit)
        end.close()

    thread = beside(send)
    found = b"".join(iter(lambda: other.recv(1 << 16), b""))
    thread.join()
    other.close()
    return found


@pytest.mark.parametrize("at", [0, HEAD - 1, HEAD, HEAD + 99, HEAD + 100, -1])
def test_a_changed_bit_ends_it(sealed: tuple[Connection, socket.socket], at: int) -> None:
    end, bare = sealed
    said = bytearray(on_the_wire(os.urandom(100)))
    said[at] ^= 1
    bare.sendall(said)
    bare.shutdown(socket.SHUT_WR)
    try:
        whole = end.receive(memoryview(bytearray(100)))
    except ConnectionError:
        return
    assert not whole  # a record that says it is longer never comes to its end


@pytest.mark.parametrize("what", ["said again", "left out", "in another order"])
def test_records_that_are_not_the_next_end_it(
    sealed: tuple[Connection, socket.socket], what: str
) -> None:
    end, bare = sealed
    length = HEAD + RECORD + TAG
    sent = on_the_wire(os.urandom(3 * RECORD))
    records = [sent[at : at + length] for at in range(0, len(sent), length)]
    said = {
        "said again": [records[0], records[0]],
        "left out": [records[0], records[2]],
        "in another order": [records[1], records[0]],
    }[what]

    def send() -> None:
        with contextlib.suppress(OSError):  # it is hung up on, maybe before all is said
            bare.sendall(b"".join(said))

    thread = beside(send)
    with pytest.raises(ConnectionError):
        end.receive(memoryview(bytearray(2 * RECORD)))
    end.hang_up()
    end.close()
    thread.join()


def test_rooms_for_records_are_used_again() -> None:
    def move() -> None:
        made = ends(KEYS)
        unit = bytes(4 * RECORD)
        thread = beside(lambda: made[0].send(unit))
        assert made[1].receive(memoryview(bytearray(len(unit))))
        thread.join()
        for end in made:
            end.close()

    for _ in range(3):
        move()
    known = {id(room) for room in sealed_bytes._rooms}
    for _ in range(20):
        move()
    assert {id(room) for room in sealed_bytes._rooms} == known
    assert len(known) <= sealed_bytes._KEPT


# --- on the wire ----------------------------------------------------------------------------------


class Wire:
    """Stands between a link and its server, and keeps all that passes; may change what does."""

    def __init__(self, to: ServerAddress) -> None:
        self.heard = bytearray()
        self.changes: Callable[[bytes], bytes] = bytes
        self._to = to
        self._listener = socket.create_server((LOOPBACK, 0))
        self._sockets: list[socket.socket] = []
        self._threads = [beside(self._accept)]

    @property
    def place(self) -> ServerAddress:
        port = self._listener.getsockname()[1]
        return ServerAddress([LOOPBACK], port, self._to.secret, sealed=self._to.sealed)

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            other = socket.create_connection((LOOPBACK, self._to.port))
            self._sockets += [one, other]
            self._threads += [
                beside(lambda a=a, b=b: self._pass(a, b)) for a, b in ((one, other), (other, one))
            ]

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                self.heard += data
                other.sendall(self.changes(data))
        except OSError:
            pass  # one side has gone, which ends the other below
        module.hang_up(other)
        module.hang_up(one)

    def close(self) -> None:
        module.hang_up(self._listener)
        self._threads[0].join()
        for one in self._sockets:
            module.hang_up(one)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._sockets):
            one.close()


class Served:
    """Memory that is served over a wire that somebody listens to."""

    def __init__(self, *, sealed: bool) -> None:
        self.memory = bytearray(b"the weights of a model, " * 50_000)
        self.regions = Regions("node", "address")
        self.server = TcpServer(RegionRequests(self.regions))
        self.place = self.server.place(LOOPBACK, [LOOPBACK], sealed=sealed)
        self.wire = Wire(self.place)
        kept = memory_of(self.memory)
        slot, self.key, _ = self.regions.register(kept)
        self.handle = Handle(
            VERSION, self.regions.owner, slot, self.key, kept.size, False, False, "a", "i"
        )

    def link(self, place: ServerAddress | None = None) -> TcpLink:
        late = time.monotonic() + PATIENCE_S
        return TcpLink(self.regions.owner, place or self.wire.place, lambda: False, late)

    def piece(self, room: Any) -> Piece:
        memory = memory_of(room)
        return Piece(self.handle, 0, memory.address, memory.size, memory)

    def close(self) -> None:
        self.wire.close()
        self.server.close()
        self.regions.close()


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(sealed=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("served", [True, False], indirect=True, ids=["sealed", "open"])
def test_who_listens_on_the_wire_sees_neither_bytes_nor_keys_of_a_sealed_connection(
    served: Served,
) -> None:
    room, late = bytearray(len(served.memory)), time.monotonic() + PATIENCE_S
    link = served.link()
    link.read_into([served.piece(room)], late)
    assert room == served.memory
    room[:] = b"other weights of a model" * 50_000
    link.write_from([served.piece(room)], late)
    assert served.memory == room
    link.close()
    seen = [
        secret in served.wire.heard
        for secret in (b"the weights of a model", b"other weights", served.key)
    ]
    assert seen == [not link.sealed] * 3


@pytest.mark.parametrize("served", [True], indirect=True, ids=["sealed"])
def test_who_changes_what_is_on_the_wire_changes_no_memory(served: Served) -> None:
    link = served.link()
    before = bytes(served.memory)
    changed = threading.Event()

    def change(data: bytes) -> bytes:
        if len(data) < 4096 or changed.is_set():
            return data
        changed.set()
        return data[:-1] + bytes([data[-1] ^ 1])

    served.wire.changes = change
    room = bytearray(len(before))
    with pytest.raises(TransportFailed, match="the other end did not encrypt"):
        link.read_into([served.piece(room)], time.monotonic() + PATIENCE_S)
    assert changed.is_set()
    link.read_into([served.piece(room)], time.monotonic() + PATIENCE_S)  # a new connection
    assert room == before
    link.close()


@pytest.mark.parametrize("served", [True], indirect=True, ids=["sealed"])
def test_each_connection_has_keys_of_its_own(served: Served) -> None:
    words, said = b"the same words", []
    for _ in range(2):
        wire = Wire(served.place)
        try:
            end = dial(wire.place, time.monotonic() + PATIENCE_S)
            end.send(words)
            end.close()
        finally:
            wire.close()
        said.append(wire.heard[-(HEAD + len(words) + TAG) :])
    assert said[0][:HEAD] == said[1][:HEAD] == struct.pack(">I", len(words))
    assert said[0][HEAD:] != said[1][HEAD:]
