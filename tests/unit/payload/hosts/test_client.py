"""Payloads between two gateways, over real sockets: whole, sealed, or told not to come so."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import psutil
import pytest

from monarch._src.net.streams.connection import Connection
from monarch._src.net.streams.protocol import (
    ANSWER,
    DONE,
    MAGIC,
    REFUSED,
    STALE,
    PartRequest,
)
from monarch._src.net.streams.server import TcpServer
from monarch._src.net.streams.sockets import LOOPBACK
from monarch._src.payload.hosts import client as module
from monarch._src.payload.hosts.client import OFF, Bulk, Terms
from monarch._src.payload.hosts.server import PartRequests
from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.pieces import Outcome, Wanted
from monarch._src.payload.sender import HEADER
from monarch._src.payload.state.fetches import PIECE
from monarch._src.system import shared_memory
from monarch._src.wire.messages import AskBulk, BulkAt
from monarch._src.wire.segment_refs import InSegment
from monarch.config import configured
from tests.runtime_logs import RuntimeErrors
from tests.unit.net.meddler import Meddler

pytestmark = pytest.mark.skipif(not shared_memory.PRESENT, reason="segments need memfd_create")
KEY = 99
DATA = os.urandom(2 * PIECE + 5)
PATIENCE_S = 60.0


class Gateway:
    """One with a thread that does what is posted, as that of a real one does."""

    def __init__(self, site: str, listens: bool, *, seals: bool = True) -> None:
        self.site, self.listens = site, listens
        self.other: Gateway
        self.meddler: Meddler | None = None  # stands in the way of what this one dials
        self.posted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.served = OutgoingPayloads()
        self.bulk = Bulk(
            Terms(
                site, seals, 10.0, lambda: (LOOPBACK, [LOOPBACK]) if self.listens else ("", []),
                lambda _: False, lambda: self.served, self.posted.put, self.tell, self.opener,
            )
        )  # fmt: skip
        self.came: queue.SimpleQueue[tuple[Wanted, Outcome, str]] = queue.SimpleQueue()
        self.bulk.done = lambda wanted, outcome, why: self.came.put((wanted, outcome, why))
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        while (work := self.posted.get()) is not None:
            work()

    def tell(self, _site: str, message: AskBulk | BulkAt) -> bool:
        self.other.posted.put(partial(self.other.heard, message))
        return True

    def heard(self, message: AskBulk | BulkAt) -> None:
        if isinstance(message, AskBulk):
            self.bulk.on_ask(self.other.site, message)
        else:
            self.bulk.on_answer(message)

    def opener(self) -> Callable[[str, int, float], socket.socket] | None:
        if self.meddler is None:
            return None
        port = self.meddler.port
        return lambda _host, _port, _deadline: socket.create_connection((LOOPBACK, port))

    def ask(self, room: bytearray, number: int, *, fetch: int = 1) -> int:
        """Have all of a payload fetched that the other side has; in how many pieces."""
        lent = InSegment(
            1, os.getpid(), 0, 0, KEY, 0, HEADER + len(room), number, True, True, True,
            ((HEADER, len(room)),),
        )  # fmt: skip
        places = range(0, len(room), PIECE)
        for at in places:
            wanted = Wanted(fetch, 0, at, min(PIECE, len(room) - at), lent, InMemory(room))
            self.posted.put(partial(self.bulk.ask, self.other.site, wanted))
        return len(places)

    def outcomes(self, count: int) -> list[Outcome]:
        return [self.came.get(timeout=PATIENCE_S)[1] for _ in range(count)]

    def close(self) -> None:
        self.bulk.close()
        self.posted.put(None)
        self.thread.join()


class InMemory:
    def __init__(self, room: bytearray) -> None:
        self._room = memoryview(room)

    def room(self, part: int, at: int, size: int) -> memoryview:
        return self._room[at : at + size]

    def write(self, part: int, at: int, data: object) -> None:
        raise AssertionError("there is room")


Make = Callable[..., tuple[Gateway, Gateway]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Two gateways: who wants a payload, and who has it."""
    made: list[Gateway] = []

    def pair(*listen: str, seals: bool = True) -> tuple[Gateway, Gateway]:
        wants = Gateway("wants-1", "wants" in listen, seals=seals)
        has = Gateway("has-1", "has" in listen, seals=seals)
        wants.other, has.other = has, wants
        made.extend((wants, has))
        return wants, has

    yield pair
    for one in made:
        one.close()


@pytest.fixture
def meddler() -> Iterator[Callable[[Gateway], Meddler]]:
    """Puts something in front of where a gateway listens; what is asked there is sound so far."""
    made: list[Meddler] = []

    def before(gateway: Gateway) -> Meddler:
        place = gateway.bulk._dialling.serve("")  # pyright: ignore[reportPrivateUsage]
        made.append(Meddler(place.port))
        return made[-1]

    yield before
    for one in made:
        one.close()


@pytest.mark.parametrize("seals", [True, False], ids=["sealed", "open"])
@pytest.mark.parametrize("listens", ["has", "wants"])
def test_a_payload_comes_whole_whoever_of_the_two_can_listen(
    make: Make, listens: str, seals: bool
) -> None:
    wants, has = make(listens, seals=seals)
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    room = bytearray(len(DATA))
    assert wants.outcomes(wants.ask(room, number)) == [Outcome.HERE] * 3
    assert room == DATA


def test_of_a_payload_that_was_given_up_that_is_said_and_the_next_one_comes(make: Make) -> None:
    wants, has = make("has")
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    has.served.taken(KEY, number)
    room = bytearray(len(DATA))
    assert wants.outcomes(wants.ask(room, number)) == [Outcome.STALE] * 3
    assert not any(room)
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    assert wants.outcomes(wants.ask(room, number)) == [Outcome.HERE] * 3
    assert room == DATA


def test_nobody_on_the_way_reads_it_and_changed_bytes_are_asked_for_again(
    make: Make, meddler: Callable[[Gateway], Meddler]
) -> None:
    wants, has = make("wants")
    has.meddler = meddler(wants)
    data = b"a secret page " * (PIECE // 8)
    number = has.served.add("node", "wants-1", KEY, [memoryview(data)])
    for _ in range(5):
        room = bytearray(len(data))
        assert set(wants.outcomes(wants.ask(room, number))) == {Outcome.HERE}
        assert room == data
        has.meddler.changes.set()  # of the next time
    room = bytearray(len(data))
    assert set(wants.outcomes(wants.ask(room, number))) == {Outcome.HERE}
    assert room == data
    assert not has.meddler.changes.is_set()
    assert len(has.meddler.heard) > 6 * len(data)
    assert b"secret" not in has.meddler.heard


def test_connections_that_are_cut_under_load_lose_nothing(
    make: Make, meddler: Callable[[Gateway], Meddler]
) -> None:
    wants, has = make("has")
    wants.meddler = meddler(has)
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    rooms = [bytearray(len(DATA)) for _ in range(12)]
    pieces = sum(wants.ask(room, number) for room in rooms)
    for at in range(pieces):
        assert wants.outcomes(1) == [Outcome.HERE]
        if at % 5 == 0:
            wants.meddler.cut()
    assert all(room == DATA for room in rooms)


def test_a_site_that_cannot_be_reached_is_told_and_tried_again_later(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    wants, has = make()
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    room = bytearray(len(DATA))
    pieces = wants.ask(room, number)
    whys = {wants.came.get(timeout=PATIENCE_S)[1:] for _ in range(pieces)}
    ((outcome, why),) = whys
    assert outcome is Outcome.DOWN
    assert "no connection beside the link to has: other hosts do not dial has-1" in why
    assert [record.levelname for record in caplog.records] == ["WARNING"], "it is said once"
    assert wants.bulk.why_not("has-1") == why
    has.listens = True
    until = time.monotonic() + PATIENCE_S
    turn = threading.Event()
    while wants.bulk.why_not("has-1"):
        assert time.monotonic() < until
        turn.wait(0.01)
    assert wants.outcomes(wants.ask(room, number)) == [Outcome.HERE] * 3
    assert room == DATA


def test_an_error_of_ours_is_logged_and_the_payload_comes_by_the_link(
    make: Make, monkeypatch: pytest.MonkeyPatch, runtime_errors: RuntimeErrors
) -> None:
    def broken(_connection: Connection, _wanted: Wanted) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "_put", broken)
    wants, has = make("has")
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    pieces = wants.ask(bytearray(len(DATA)), number)
    assert wants.outcomes(pieces) == [Outcome.DOWN] * pieces
    (said, *_) = runtime_errors.take()
    assert "fetching payloads of has failed" in said
    assert "ZeroDivisionError" in said


def test_where_tcp_is_forbidden_no_connection_is_made(make: Make) -> None:
    wants, has = make("has", "wants")
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    with configured(rdma_allow_tcp_fallback=False):
        assert wants.bulk.why_not("has-1") == OFF
        pieces = wants.ask(bytearray(len(DATA)), number)
        assert wants.outcomes(pieces) == [Outcome.DOWN] * pieces
    assert not has.bulk._dialling.serves  # pyright: ignore[reportPrivateUsage]


def test_of_a_site_that_has_ended_nothing_is_told_any_more(
    make: Make, meddler: Callable[[Gateway], Meddler]
) -> None:
    wants, has = make("has")
    wants.meddler = meddler(has)
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    room = bytearray(len(DATA))
    wants.ask(room, number)
    wants.outcomes(1)
    wants.posted.put(partial(wants.bulk.forget_site, "has-1"))
    pieces = wants.ask(room, number, fetch=2)
    told: list[int] = []
    while told.count(2) < pieces:
        wanted, outcome, _ = wants.came.get(timeout=PATIENCE_S)
        assert outcome is Outcome.HERE
        told.append(wanted.fetch)
    assert told.index(2) == len(told) - pieces, "of the first only what was posted before"


def test_those_who_were_let_in_before_are_not_any_more(make: Make) -> None:
    wants, has = make("has")
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    room = bytearray(len(DATA))
    wants.outcomes(wants.ask(room, number))
    before = has.bulk._dialling  # pyright: ignore[reportPrivateUsage]
    has.bulk.restart_server()
    assert before.serve("").hosts == []
    assert wants.outcomes(wants.ask(room, number)) == [Outcome.HERE] * 3  # who asks again is let in


def test_a_fork_has_no_copy_of_a_connection(make: Make) -> None:
    wants, has = make("has")
    number = has.served.add("node", "wants-1", KEY, [memoryview(DATA)])
    wants.outcomes(wants.ask(bytearray(len(DATA)), number))
    assert sockets()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            wants.bulk.forked()
            has.bulk.forked()
            os.write(write, str(sockets()).encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        assert os.read(read, 10) == b"0"
    finally:
        os.close(read)
        os.waitpid(pid, 0)
    assert wants.outcomes(wants.ask(bytearray(len(DATA)), number)) == [Outcome.HERE] * 3


def sockets() -> int:
    """How many TCP sockets this process has open."""
    return len(psutil.Process().net_connections("tcp"))


# --- segments of other processes ------------------------------------------------------------------

SENDER = """
import os, sys
from monarch._src.system import shared_memory
from monarch._src.payload.sender import HEADER, PayloadSender
from monarch._src.wire.frames import Payload
lender = PayloadSender(lambda node, _: (node,))
body = bytes(range(256)) * 1024
payload = lender.place(Payload(body), sole=True)
lent = payload.buffers[0].lend_to("node")
other = os.memfd_create("other", os.MFD_ALLOW_SEALING)
os.ftruncate(other, lent.capacity)
os.pwrite(other, os.pread(lent.fd, HEADER, 0), 0)
print(lent.pid, lent.fd, lent.file, lent.key, lent.capacity, lent.use, *lent.spans[0],
      other, os.fstat(other).st_ino, flush=True)
while sys.stdin.readline():
    payload = None
    lender.node_gone("node")
    payload = lender.place(Payload(bytes(len(body))), sole=True)
    print(payload.buffers[0].lend_to("node").use, flush=True)
lender.close()
"""
BODY = bytes(range(256)) * 1024


class Sender:
    """A process with a payload in a segment, and with another file that has the same header."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        assert self._process.stdout is not None
        said = [int(text) for text in self._process.stdout.readline().split()]
        self.pid, fd, file, key, capacity, use, at, size, self.other, self.inode = said
        self.asked = PartRequest(self.pid, fd, file, key, capacity, use, 0, 0, 0, at, size)

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def sender() -> Iterator[Sender]:
    made = Sender()
    yield made
    made.close()


@pytest.fixture
def peer(sender: Sender) -> Iterator[tuple[Connection, PartRequests]]:
    """A connection of who knows the secret to a server that has that process."""
    requests = PartRequests(lambda pid: pid == sender.pid, lambda: None)
    server = TcpServer(requests)
    place = server.place(LOOPBACK, [LOOPBACK], sealed=True)
    connection = place.connect(time.monotonic() + PATIENCE_S)
    yield connection, requests
    connection.close()
    server.close()


def answered(peer: tuple[Connection, PartRequests], asked: PartRequest) -> tuple[int, bytes]:
    """The status, and the bytes if there are any."""
    connection, requests = peer
    connection.send(asked.packed(requests.incarnation))
    head = bytearray(ANSWER.size)
    assert connection.receive(memoryview(head))
    magic, status, _ = ANSWER.unpack(head)
    assert magic == MAGIC
    data = bytearray(asked.size if status == DONE else 0)
    assert connection.receive(memoryview(data))
    return status, bytes(data)


def changed(asked: PartRequest, **fields: int) -> PartRequest:
    said = {name: getattr(asked, name) for name in asked.__struct_fields__}
    return PartRequest(**{**said, **fields})


def test_a_segment_of_another_process_is_read_and_only_as_far_as_it_goes(
    sender: Sender, peer: tuple[Connection, PartRequests]
) -> None:
    asked = sender.asked
    assert answered(peer, asked) == (DONE, BODY)
    assert answered(peer, changed(asked, offset=asked.offset + 5, size=7)) == (DONE, BODY[5:12])
    wrong = [
        changed(asked, pid=1),
        changed(asked, pid=os.getppid()),
        changed(asked, fd=0),
        changed(asked, fd=9999),
        changed(asked, file=asked.file + 1),
        changed(asked, fd=sender.other),
        changed(asked, fd=sender.other, file=sender.inode),  # it could shrink
        changed(asked, offset=0),
        changed(asked, offset=HEADER - 1),
        changed(asked, size=0),
        changed(asked, size=asked.capacity),
        changed(asked, offset=1 << 63, size=1 << 63),
        changed(asked, offset=asked.capacity),
        changed(asked, capacity=asked.capacity * 4),
        changed(asked, capacity=(1 << 64) - 1, offset=(1 << 64) - 10, size=5),
    ]
    for one in wrong:
        assert answered(peer, one)[0] == REFUSED, one
    for one in (changed(asked, key=asked.key ^ 1), changed(asked, use=asked.use + 1),
                changed(asked, pid=os.getpid())):  # fmt: skip
        assert answered(peer, one)[0] == STALE, one
    assert answered(peer, asked) == (DONE, BODY), "over the same connection"


def test_a_segment_that_has_another_message_by_now_gives_none_of_it() -> None:
    made = Sender()
    requests = PartRequests(lambda pid: pid == made.pid, lambda: None)
    server = TcpServer(requests)
    connection = server.place(LOOPBACK, [LOOPBACK], sealed=True).connect(
        time.monotonic() + PATIENCE_S
    )
    try:
        assert answered((connection, requests), made.asked) == (DONE, BODY)
        assert made._process.stdin is not None  # pyright: ignore[reportPrivateUsage]
        assert made._process.stdout is not None  # pyright: ignore[reportPrivateUsage]
        made._process.stdin.write("\n")  # pyright: ignore[reportPrivateUsage]
        made._process.stdin.flush()  # pyright: ignore[reportPrivateUsage]
        made._process.stdout.readline()  # pyright: ignore[reportPrivateUsage]
        assert answered((connection, requests), made.asked)[0] in (STALE, REFUSED)
    finally:
        connection.close()
        server.close()
        made.close()
