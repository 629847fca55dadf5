"""Large payloads between hosts, over TCP connections of the data plane beside the links.

The gateway of the receiving host requests a payload from the gateway of the sending host, piece by
piece, and writes each piece to the place where its receivers will read it. The host fetcher
(`payload.host_fetcher`) decides which pieces it needs, and when. A few threads serve each site;
each has its own connection with two open requests, so that it decrypts one piece while the next one
is on the wire. A connection and its thread exist while pieces are wanted, and some seconds more.

The two gateways exchange addresses over their link (AskBulk). A client does not listen: it dials
workers, also in order to serve them (`net.streams.dialling`). Connections are encrypted if
links have keys, because payloads are unpickled.

    state of a site    new -> UP                 a connection was made
                       new, UP -> DOWN           no connection could be made; payloads use the link
                       DOWN -> UP                a later attempt to connect succeeded

The first connection to a site may take `TRY_S`. After that, pieces of a broken connection are
requested again on a new one, until the host has been silent for `liveness`.
A site that is down is tried again with growing pauses, whenever pieces are wanted of it.

Runs in: a gateway, on the thread that handles messages of links, and on threads of this module.
Owns: these threads, the connections, the server of this host's payloads.
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

from monarch._src.config import settings
from monarch._src.net.streams.connection import Connection
from monarch._src.net.streams.dialling import Dialling
from monarch._src.net.streams.protocol import (
    ANSWER,
    DONE,
    MAGIC,
    REFUSED,
    STALE,
    PartRequest,
)
from monarch._src.net.streams.sockets import Connector, Opener, ServerAddress
from monarch._src.net.streams.thread_pool import Pool
from monarch._src.payload.hosts.server import PartRequests
from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.pieces import Outcome, Wanted
from monarch._src.wire.encryption import RECORD
from monarch._src.wire.ids import host_of_site
from monarch._src.wire.messages import AskBulk, BulkAt
from monarch._src.wire.msgpack_text import UNREADABLE

log = logging.getLogger("monarch.payload")
CONNECTIONS = min(4, max(2, os.cpu_count() or 1))  # to one site
UNDER_WAY = 2  # requests on one connection
TRY_S = 10.0  # for the first connection to a site, and no more than a third of liveness
IDLE_S = 5.0
PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0  # between attempts while a site is up
OFF = "rdma_allow_tcp_fallback is off"


def _request_for(wanted: Wanted) -> PartRequest:
    lent = wanted.lent
    return PartRequest(
        lent.pid, lent.fd, lent.file, lent.key, lent.capacity, lent.use, lent.word, wanted.part,
        wanted.at, lent.spans[wanted.part][0] + wanted.at, wanted.size,
    )  # fmt: skip


class Terms(msgspec.Struct, frozen=True):
    """The services of a gateway that its `Bulk` uses.

    host: the name of this host, for errors.
    seals: whether connections are encrypted, which they are if links have keys.
    liveness_s: how long a host may be silent before it counts as lost.
    serves_at: the address to listen at, and those for others to dial; see `Dialling`.
    has_process, served: see `PartRequests`.
    post: runs a function on the gateway's thread. Any thread may call it.
    tell: sends a message to the gateway of a site; False if the site is out of reach.
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
    """Fetches and serves pieces of payloads; see the module's docstring."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._numbers = itertools.count(1)
        self._questions: dict[int, queue.SimpleQueue[BulkAt | None]] = {}
        self._sites: dict[str, _Site] = {}
        self._ending: list[_Site] = []
        self._coming = Pool()  # connects to sites that cannot connect to us
        self._closed = False
        self._begin_serving()
        # Called on the gateway's thread with the outcome of each piece and the reason of a failure
        self.done: Callable[[Wanted, Outcome, str], None] = lambda _wanted, _outcome, _why: None

    def _begin_serving(self) -> None:
        terms = self._terms
        self._requests = PartRequests(terms.has_process, terms.served)
        self._dialling = Dialling(
            self._requests, terms.host, terms.serves_at, lambda _: False, terms.opener,
            lambda: terms.seals,
        )  # fmt: skip

    # --- as the gateway that fetches payloads -----------------------------------------------------

    def why_not(self, site: str) -> str:
        """Why payloads of that site use its link now; empty if they do not."""
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

    def forget_site(self, site: str) -> None:
        """Forget a site: drop its requests, its connections and its address."""
        found = self._sites.pop(site, None)
        if found is not None:
            found.close()
            self._ending = [one for one in self._ending if not one.has_ended]
            self._ending.append(found)

    def report(self, wanted: Wanted, outcome: Outcome, why: str) -> None:
        """Report the outcome of a piece to the gateway's thread. Any thread."""
        self._terms.post(partial(self._report, wanted, outcome, why))

    def _report(self, wanted: Wanted, outcome: Outcome, why: str) -> None:
        self.done(wanted, outcome, why)

    def connector(self, site: str, deadline: float) -> tuple[Connector, bytes]:
        """A connector to the gateway of a site, and the incarnation of that gateway.

        The call blocks, so it must not run on the gateway's thread.

        Raises:
            OSError, Broken: the gateway is out of reach or gave no address.
        """
        said = self._question(site, b"", deadline)
        try:
            place = msgspec.msgpack.decode(said.body, type=ServerAddress)
        except UNREADABLE as error:
            raise ConnectionError(f"its gateway sent an unreadable answer: {error}") from None

        def ask_to_come(body: bytes, deadline: float) -> bytes:
            return self._question(site, body, deadline).body

        return self._dialling.connector(place, ask_to_come), said.incarnation

    def _question(self, site: str, body: bytes, deadline: float) -> BulkAt:
        """Send a question to the gateway of a site over the link, and wait for the answer."""
        number = next(self._numbers)
        answers: queue.SimpleQueue[BulkAt | None] = queue.SimpleQueue()
        self._questions[number] = answers
        if self._closed:  # `close` sets this before it reads `_questions`
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

    def on_answer(self, message: BulkAt) -> None:
        """The gateway of a site has answered."""
        answers = self._questions.get(message.number)
        if answers is not None:
            answers.put(message)

    # --- as the gateway that serves payloads ------------------------------------------------------

    def on_ask(self, site: str, message: AskBulk) -> None:
        """The gateway of that site asks for the address of the server here, or for a connection."""
        dialling, incarnation = self._dialling, self._requests.incarnation

        def said(body: bytes) -> None:
            if not self._closed:
                self._terms.tell(site, BulkAt(message.number, incarnation, body))

        def come() -> None:
            try:
                body = dialling.come(message.body)
            except ValueError as error:
                log.warning("the gateway of %s sent an unreadable request: %s", site, error)
                body = msgspec.msgpack.encode("the request to connect is unreadable")
            self._terms.post(partial(said, body))

        if not settings().rdma_allow_tcp_fallback:
            said(msgspec.msgpack.encode(OFF if message.body else ServerAddress([], why=OFF)))
        elif message.body:
            self._coming.submit(come)  # connecting blocks until the other side answers
        else:
            said(msgspec.msgpack.encode(dialling.serve("")))

    def restart_server(self) -> None:
        """Replace the server: sites that know its present address may not use it any more."""
        if self._dialling.serves:
            self._dialling.close()
            self._begin_serving()

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End all threads and connections. Idempotent."""
        self._closed = True
        for site in list(self._sites):
            self.forget_site(site)
        for answers in list(self._questions.values()):
            answers.put(None)
        self._dialling.close()
        self._coming.close()
        for site in self._ending:
            site.join()

    def forked(self) -> None:
        """In a fork of this process: close the copies of all sockets. Takes no lock."""
        self._closed = True
        self._dialling.forked()
        for site in (*self._sites.values(), *self._ending):
            site.forked()


class _End(Exception):
    """Ends this thread."""


class _Site:
    """The requests to one site, and the threads that send them."""

    def __init__(self, site: str, bulk: Bulk, liveness_s: float) -> None:
        self._site = site
        self._name = host_of_site(site) or "the client"
        self._bulk = bulk
        self._liveness_s = liveness_s
        self._turn = threading.Condition(threading.Lock())
        self._wanted: deque[Wanted] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that wait for a piece to request
        self._connections: set[Connection] = set()
        self._reached: tuple[Connector, bytes] | None = None
        self._was_up = False
        self._broken_at: float | None = None  # when the connections stopped to deliver
        self._failures = 0  # since then
        self._why = ""  # the reason why it is down; empty if it is not
        self._pause_s = PAUSE_S
        self._again_at = 0.0
        self._closed = False

    # --- on the gateway's thread ------------------------------------------------------------------

    def why_not(self) -> str:
        """Why it is down, or nothing. A call after the pause starts a new attempt."""
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
                self._turn.notify_all()  # threads wait on this condition for other reasons too
            elif len(self._threads) < CONNECTIONS:
                self._start(self._run)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="monarch-bulk", daemon=True)
        self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        """Drop the requests. The threads end soon; see `join`."""
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

    # --- on the threads of this site --------------------------------------------------------------

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
                self._down("an internal error, see the log")
        finally:
            self._drop(connection)
            with self._turn:
                self._threads.discard(threading.current_thread())

    def _next(self, under_way: deque[Wanted]) -> bool:
        """Take the next piece to request, if any; wait for one if no request is open.

        Raises:
            _End: no piece was wanted for `IDLE_S`.
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
                    # Under the lock, so that `ask` no longer counts this thread.
                    self._threads.discard(threading.current_thread())
                    raise _End
            under_way.append(self._wanted.popleft())
            return True

    def _receive(self, connection: Connection, under_way: deque[Wanted]) -> None:
        """Receive the answer to the oldest open request."""
        wanted = under_way[0]
        head = bytearray(ANSWER.size)
        _fill(connection, memoryview(head))
        magic, status, _ = ANSWER.unpack(head)
        if magic != MAGIC or status not in (DONE, STALE, REFUSED):
            raise ConnectionError("the answer is unreadable")
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
        """Handle a broken or refused connection. Returns to try again; raises _End to give up."""
        now = time.monotonic()
        with self._turn:
            self._wanted.extendleft(reversed(under_way))
            under_way.clear()
            self._reached = None  # the gateway may listen elsewhere by now
            if self._closed:
                raise _End
            if self._why:  # another thread has marked the site as down
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
        """Mark the site as down. Under the lock."""
        why = f"no connection beside the link to {self._name}: {why}"
        if not self._why:
            log.warning("large payloads come by the link: %s", why)
        self._why = why
        self._was_up, self._broken_at = False, None
        self._again_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._give_up()

    def _give_up(self) -> None:
        """Hand the wanted pieces back, to be fetched over the link. Under the lock."""
        while self._wanted:
            self._bulk.report(self._wanted.popleft(), Outcome.DOWN, self._why)

    def _connected(self) -> tuple[Connection, bytes]:
        """A new connection, and the incarnation of its gateway. OSError: there is none."""
        deadline = time.monotonic() + min(TRY_S, self._liveness_s / 3)
        reached = self._reached
        if reached is None:
            reached = self._reached = self._bulk.connector(self._site, deadline)
        connection = reached[0].connect(deadline)
        with self._turn:
            if self._closed:
                connection.close()
                raise ConnectionError("the site was closed")
            if isinstance(reached[0], ServerAddress):  # remember which of several addresses worked
                self._reached = reached[0].found_at(connection.host), reached[1]
            self._was_up = True
            self._connections.add(connection)
        # A host that is silent for that long loses its link too.
        connection.limit(self._liveness_s)
        return connection, reached[1]

    def _drop(self, connection: Connection | None) -> None:
        if connection is not None:
            with self._turn:
                self._connections.discard(connection)
            connection.close()

    def _try_again(self) -> None:
        """Try to connect to a site that is down, after its pause."""
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
    """Receive a piece into its place. Returns why it could not be stored, or an empty text."""
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
        raise ConnectionResetError("the other host closed the connection")
