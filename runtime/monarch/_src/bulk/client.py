"""Large payloads between hosts, over TCP connections of the data plane beside the links.

The gateway of the host that gets a payload asks the gateway of the host that has it, piece by
piece, and puts each piece where its receivers will have it. What it asks for, and when, its
`Fetcher` says. A site is asked by a few threads, each with a connection of its own and two requests
under way, so that one piece is decrypted while the next one is on the wire. A connection and its
thread are there while there is something to ask for, and some seconds more.

Where a gateway serves, the two tell each other over their link (AskBulk). A client listens nowhere:
it dials workers, also to serve them (`rdma.transports.tcp_connect`). Everything is sealed if links
have keys, since payloads are unpickled.

    state of a site    new -> UP                 a connection was made
                       new, UP -> DOWN           none could be made; payloads go by the link
                       DOWN -> UP                one could be made, when that was tried again

The first connection to a site may take `TRY_S`. Once there was one, pieces whose connection has
broken are asked for again on a new one, for as long as a silent host is waited for (`liveness`).
A site that is down is tried again with growing pauses, when there is something to fetch.

Runs in: a gateway; called on the thread that handles what its links bring, but for what threads of
this module do. Owns: the threads, the connections, the server of this host's payloads.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from monarch._src.bulk.server import PartRequests
from monarch._src.config import settings
from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.pieces import Outcome, Wanted
from monarch._src.rdma.thread_pool import Pool
from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.transports.tcp_channel import Connection
from monarch._src.rdma.transports.tcp_connect import Dialling
from monarch._src.rdma.transports.tcp_protocol import ANSWER, DONE, MAGIC, REFUSED, STALE, PartAsked
from monarch._src.rdma.transports.tcp_sockets import Connector, Opener, Place
from monarch._src.wire.encryption import RECORD
from monarch._src.wire.ids import host_of_site
from monarch._src.wire.messages import AskBulk, BulkAt
from monarch._src.wire.msgpack_text import UNREADABLE

log = logging.getLogger("monarch.data")
CONNECTIONS = min(4, max(2, os.cpu_count() or 1))  # to one site
UNDER_WAY = 2  # requests on one connection
TRY_S = 10.0  # for the first connection to a site, and no more than a third of liveness
IDLE_S = 5.0
PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0  # between attempts while a site is up
OFF = "rdma_allow_tcp_fallback is off"


def _request_for(wanted: Wanted) -> PartAsked:
    lent = wanted.lent
    return PartAsked(
        lent.pid, lent.fd, lent.file, lent.key, lent.capacity, lent.use, lent.word, wanted.part,
        wanted.at, lent.spans[wanted.part][0] + wanted.at, wanted.size,
    )  # fmt: skip


class Terms(msgspec.Struct, frozen=True):
    """What a gateway gives its `Bulk`.

    host: what this host is called, in errors.
    seals: whether connections are sealed: links have keys.
    liveness_s: how long a silent host is waited for.
    serves_at: where to listen, and what others dial; see `Dialling`.
    has_process, served: see `PartRequests`.
    post: has something done on the gateway's thread; on any thread.
    tell: sends the gateway of a site a message; False if it is out of reach.
    opener: see `Dialling`.
    """

    host: str
    seals: bool
    liveness_s: float
    serves_at: Callable[[], tuple[str, list[str]]]
    has_process: Callable[[int], bool]
    served: Callable[[], OutgoingPayloads | None]
    post: Callable[[Callable[[], None]], None]
    tell: Callable[[str, AskBulk | BulkAt], bool]
    opener: Callable[[], Opener | None] = lambda: None


class Bulk:
    """See the module's text."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._numbers = itertools.count(1)
        self._questions: dict[int, queue.SimpleQueue[BulkAt | None]] = {}
        self._sites: dict[str, _Site] = {}
        self._ending: list[_Site] = []
        self._coming = Pool()  # connects to sites that cannot connect to us
        self._closed = False
        self._begin_serving()
        # Called on the gateway's thread with the outcome of each piece and the reason of a failure.
        self.done: Callable[[Wanted, Outcome, str], None] = lambda _wanted, _outcome, _why: None

    def _begin_serving(self) -> None:
        terms = self._terms
        self._requests = PartRequests(terms.has_process, terms.served)
        self._dialling = Dialling(
            self._requests, terms.host, terms.serves_at, lambda _: False, terms.opener,
            lambda: terms.seals,
        )  # fmt: skip

    # --- as the gateway that wants payloads -------------------------------------------------------

    def why_not(self, site: str) -> str:
        """Why payloads of that site go by its link now; empty if they do not."""
        if not settings().rdma_allow_tcp_fallback:
            return OFF
        found = self._sites.get(site)
        return "" if found is None else found.why_not()

    def ask(self, site: str, wanted: Wanted) -> None:
        """Fetch that piece."""
        found = self._sites.get(site)
        if found is None:
            found = self._sites[site] = _Site(site, self, self._terms.liveness_s)
        found.ask(wanted)

    def ended(self, site: str) -> None:
        """Nothing more is wanted of that site, and what was told of it is not true any more."""
        found = self._sites.pop(site, None)
        if found is not None:
            found.close()
            self._ending = [one for one in self._ending if not one.has_ended]
            self._ending.append(found)

    def report(self, wanted: Wanted, outcome: Outcome, why: str) -> None:
        """Tell what has become of a piece. Any thread."""
        self._terms.post(partial(self._report, wanted, outcome, why))

    def _report(self, wanted: Wanted, outcome: Outcome, why: str) -> None:
        self.done(wanted, outcome, why)

    def connector(self, site: str, deadline: float) -> tuple[Connector, bytes]:
        """How the gateway of a site is reached, and its incarnation. Blocks; on any thread but one.

        Raises:
            OSError, Broken: it cannot be.
        """
        said = self._question(site, b"", deadline)
        try:
            place = msgspec.msgpack.decode(said.body, type=Place)
        except UNREADABLE as error:
            raise ConnectionError(f"its gateway says nonsense: {error}") from None

        def ask_to_come(body: bytes, deadline: float) -> bytes:
            return self._question(site, body, deadline).body

        return self._dialling.connector(place, ask_to_come), said.incarnation

    def _question(self, site: str, body: bytes, deadline: float) -> BulkAt:
        """Ask the gateway of a site something, by the link."""
        number = next(self._numbers)
        answers: queue.SimpleQueue[BulkAt | None] = queue.SimpleQueue()
        self._questions[number] = answers
        if self._closed:  # looked at by `close` the other way round
            answers.put(None)

        def tell() -> None:
            if self._closed or not self._terms.tell(site, AskBulk(number, body)):
                answers.put(None)

        self._terms.post(tell)
        try:
            said = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError("its gateway did not answer over the link") from None
        finally:
            self._questions.pop(number, None)
        if said is None:
            raise ConnectionError("its gateway is out of reach")
        return said

    def on_told(self, message: BulkAt) -> None:
        """The gateway of a site has answered."""
        answers = self._questions.get(message.number)
        if answers is not None:
            answers.put(message)

    # --- as the gateway that serves them ----------------------------------------------------------

    def on_ask(self, site: str, message: AskBulk) -> None:
        """The gateway of that site asks where payloads are served, or to connect to it."""
        dialling, incarnation = self._dialling, self._requests.incarnation

        def said(body: bytes) -> None:
            if not self._closed:
                self._terms.tell(site, BulkAt(message.number, incarnation, body))

        def come() -> None:
            try:
                body = dialling.come(message.body)
            except ValueError as error:
                log.warning("the gateway of %s asks for nonsense: %s", site, error)
                body = msgspec.msgpack.encode("that is no invitation")
            self._terms.post(partial(said, body))

        if not settings().rdma_allow_tcp_fallback:
            said(msgspec.msgpack.encode(OFF if message.body else Place([], why=OFF)))
        elif message.body:
            self._coming.submit(come)  # to connect takes until the other side answers
        else:
            said(msgspec.msgpack.encode(dialling.serve("")))

    def serve_anew(self) -> None:
        """Those who were told where payloads are served are not to have any more."""
        if self._dialling.serves:
            self._dialling.close()
            self._begin_serving()

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all threads and connections. Idempotent."""
        self._closed = True
        for site in list(self._sites):
            self.ended(site)
        for answers in list(self._questions.values()):
            answers.put(None)
        self._dialling.close()
        self._coming.close()
        for site in self._ending:
            site.join()

    def forked(self) -> None:
        """In a fork of this process: close its copies of all sockets. Takes no lock."""
        self._closed = True
        self._dialling.forked()
        for site in (*self._sites.values(), *self._ending):
            site.forked()


class _End(Exception):
    """This thread has nothing more to do."""


class _Site:
    """What is asked of one site."""

    def __init__(self, site: str, bulk: Bulk, liveness_s: float) -> None:
        self._site = site
        self._name = host_of_site(site) or "the client"
        self._bulk = bulk
        self._liveness_s = liveness_s
        self._turn = threading.Condition(threading.Lock())
        self._wanted: deque[Wanted] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that wait for something to ask for
        self._connections: set[Connection] = set()
        self._reached: tuple[Connector, bytes] | None = None
        self._was_up = False
        self._broken_at: float | None = None  # since when nothing came
        self._failures = 0  # since then
        self._why = ""  # it is down
        self._pause_s = PAUSE_S
        self._again_at = 0.0
        self._closed = False

    # --- on the gateway's thread ------------------------------------------------------------------

    def why_not(self) -> str:
        """Why it is down, or nothing. If it was for long enough, it is tried again meanwhile."""
        with self._turn:
            if self._why and time.monotonic() >= self._again_at and not self._closed:
                self._again_at = float("inf")
                self._start(self._try_again)
            return self._why

    def ask(self, wanted: Wanted) -> None:
        """Fetch that piece."""
        with self._turn:
            if self._why:
                self._bulk.report(wanted, Outcome.DOWN, self._why)
                return
            self._wanted.append(wanted)
            if self._idle >= len(self._wanted):
                self._turn.notify_all()  # some wait for other things
            elif len(self._threads) < CONNECTIONS:
                self._start(self._run)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="monarch-bulk", daemon=True)
        self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        """Ask for nothing more. Threads end soon; see `join`."""
        with self._turn:
            self._closed = True
            self._wanted.clear()
            for connection in self._connections:
                connection.hang_up()
            self._turn.notify_all()

    @property
    def has_ended(self) -> bool:
        return not self._threads

    def join(self) -> None:
        """Wait until its threads have ended."""
        for thread in list(self._threads):
            thread.join()

    def forked(self) -> None:
        """See `Bulk.forked`."""
        for connection in list(self._connections):
            connection.close()

    # --- on threads of its own --------------------------------------------------------------------

    def _run(self) -> None:
        connection: Connection | None = None
        incarnation = b""
        under_way: deque[Wanted] = deque()
        try:
            while True:
                try:
                    while len(under_way) < UNDER_WAY and self._next(under_way):
                        if connection is None:
                            connection, incarnation = self._connected()
                        connection.send(_request_for(under_way[-1]).packed(incarnation))
                    assert connection is not None
                    self._receive(connection, under_way)
                except OSError as error:
                    self._drop(connection)
                    connection = None
                    self._broken(under_way, error)
        except _End:
            pass
        except Exception:
            log.exception("fetching payloads of %s failed", self._name)
            with self._turn:
                self._wanted.extendleft(reversed(under_way))
                self._down("an error of this program, which its log has")
        finally:
            self._drop(connection)
            with self._turn:
                self._threads.discard(threading.current_thread())

    def _next(self, under_way: deque[Wanted]) -> bool:
        """Take what to ask for next, if there is anything; wait for it if nothing is under way.

        Raises:
            _End: there was nothing for a while.
        """
        with self._turn:
            while not self._wanted:
                if self._closed:
                    raise _End
                if under_way:
                    return False
                self._idle += 1
                called = self._turn.wait(IDLE_S)
                self._idle -= 1
                if not called and not self._wanted:
                    # Under the lock, so that the next piece finds one thread less.
                    self._threads.discard(threading.current_thread())
                    raise _End
            under_way.append(self._wanted.popleft())
            return True

    def _receive(self, connection: Connection, under_way: deque[Wanted]) -> None:
        """Take the answer to the first of what is under way."""
        wanted = under_way[0]
        head = bytearray(ANSWER.size)
        _fill(connection, memoryview(head))
        magic, status, _ = ANSWER.unpack(head)
        if magic != MAGIC or status not in (DONE, STALE, REFUSED):
            raise ConnectionError("what was answered makes no sense")
        outcome, why = Outcome.HERE, ""
        if status == STALE:
            outcome = Outcome.STALE
        elif status == REFUSED:
            outcome = Outcome.UNREADABLE
            why = f"the gateway of {self._name} cannot open segments of that process"
        elif no_memory := _put(connection, wanted):
            outcome, why = Outcome.NO_MEMORY, no_memory
        with self._turn:
            self._broken_at, self._failures = None, 0
        under_way.popleft()
        self._bulk.report(wanted, outcome, why)

    def _broken(self, under_way: deque[Wanted], error: OSError) -> None:
        """A connection has broken, or there was none: ask again soon. Raises _End: do not."""
        now = time.monotonic()
        with self._turn:
            self._wanted.extendleft(reversed(under_way))
            under_way.clear()
            self._reached = None  # it may listen elsewhere by now
            if self._closed:
                raise _End
            if self._why:  # another thread has found that out
                self._give_up()
                raise _End
            if self._broken_at is None:
                self._broken_at = now
            self._failures += 1
            log.debug("a connection for payloads of %s broke: %s", self._site, error)
            patience_s = self._liveness_s if self._was_up else 0.0
            if now < self._broken_at + patience_s:
                wait_s = min(_FIRST_WAIT_S * 2 ** min(self._failures, 16), _LONGEST_WAIT_S)
                self._turn.wait_for(lambda: self._closed, wait_s)
                return
            if self._connections:  # another thread has one
                self._turn.notify_all()
            else:
                self._down(str(error) or "no answer")
            raise _End

    def _down(self, why: str) -> None:
        """Under the lock."""
        why = f"no connection beside the link to {self._name}: {why}"
        if not self._why:
            log.warning("large payloads come by the link: %s", why)
        self._why = why
        self._was_up, self._broken_at = False, None
        self._again_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._give_up()

    def _give_up(self) -> None:
        """Have what is wanted come by the link. Under the lock."""
        while self._wanted:
            self._bulk.report(self._wanted.popleft(), Outcome.DOWN, self._why)

    def _connected(self) -> tuple[Connection, bytes]:
        """A new connection, and the incarnation that it leads to. OSError: there is none."""
        deadline = time.monotonic() + min(TRY_S, self._liveness_s / 3)
        reached = self._reached
        try:
            if reached is None:
                reached = self._reached = self._bulk.connector(self._site, deadline)
            connection = reached[0].connect(deadline)
        except TransportFailed as error:
            raise ConnectionError(str(error)) from None
        with self._turn:
            if self._closed:
                connection.close()
                raise ConnectionError("nothing more is wanted")
            if isinstance(reached[0], Place):  # what has worked first, of several addresses
                self._reached = reached[0].found_at(connection.host), reached[1]
            self._was_up = True
            self._connections.add(connection)
        # Of a host that takes or sends nothing for so long, its link would be lost.
        connection.limit(self._liveness_s)
        return connection, reached[1]

    def _drop(self, connection: Connection | None) -> None:
        if connection is not None:
            with self._turn:
                self._connections.discard(connection)
            connection.close()

    def _try_again(self) -> None:
        """It was down for a while."""
        try:
            connection, _ = self._connected()
        except OSError as error:
            with self._turn:
                self._threads.discard(threading.current_thread())
                if not self._closed:
                    self._down(str(error) or "no answer")
            return
        self._drop(connection)
        log.info("large payloads of %s come beside its link again", self._name)
        with self._turn:
            self._threads.discard(threading.current_thread())
            self._why, self._pause_s = "", PAUSE_S


def _put(connection: Connection, wanted: Wanted) -> str:
    """Receive a piece to where it belongs; why it could not be put there, or nothing."""
    memory = wanted.here.room(wanted.part, wanted.at, wanted.size)
    if memory is not None:
        _fill(connection, memory)
        return ""
    why = ""
    room = memoryview(bytearray(min(RECORD, wanted.size)))
    for at in range(0, wanted.size, RECORD):
        data = room[: min(RECORD, wanted.size - at)]
        _fill(connection, data)
        if not why:
            try:
                wanted.here.write(wanted.part, wanted.at + at, data)
            except OSError as error:
                why = error.strerror or "there is no memory"
    return why


def _fill(connection: Connection, memory: memoryview) -> None:
    if not connection.receive(memory):
        raise ConnectionResetError("it was closed from over there")
