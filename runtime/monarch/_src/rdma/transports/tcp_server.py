"""Accepts TCP connections of the data plane, and serves the requests that come by them.

The owner serves on threads of its own, so its actors need not run; the interpreter's lock they do
need, between system calls. Who made a connection does not matter once it is there: an owner that
nobody can dial connects to who has asked for it (`rdma.transports.tcp_connect`), and begins by
saying so, with the ticket that it was given. What is said: `rdma.transports.tcp_protocol`. Which
requests there are, an object of the owner says: for registered memory
`rdma.transports.tcp_regions`, for payloads `bulk.server`.

The server compares the incarnation before anything else, and hangs up on what is no request.

Runs in: the owner, one thread an address to accept and one a connection, from the first request for
its address on.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from monarch._src.rate_limited_log import Tally
from monarch._src.rdma.handle import KEY_BYTES, same
from monarch._src.rdma.transports.tcp_channel import Connection, hang_up
from monarch._src.rdma.transports.tcp_protocol import (
    ANSWER,
    DONE,
    ECHO,
    ECHO_BYTES,
    HELLO_S,
    HERE,
    MAGIC,
    REQUEST,
    WRONG_PROCESS,
    Request,
)
from monarch._src.rdma.transports.tcp_sockets import (
    SECRET_BYTES,
    Opener,
    Place,
    admit,
    dial,
    listen,
    tune,
)

log = logging.getLogger("monarch.data")
_NO_ROOM_S = 0.05


class Requests(Protocol):
    """Serves the requests that come by a server's connections, on the threads of these.

    incarnation: of who is meant; others are hung up on. kinds: of requests.
    """

    @property
    def incarnation(self) -> bytes: ...

    @property
    def kinds(self) -> Sequence[int]: ...

    def serve(self, connection: Connection, request: Request) -> bool:
        """Serve one request; False to hang up. OSError: the other side has gone."""
        ...


class TcpServer:
    """Serves requests to this process, at the addresses that it is told to listen at."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._lock = threading.Lock()
        self._serving: dict[threading.Thread, _Ends] = {}
        self._refusals: Tally[str] = Tally()
        self._closed = False
        self._secret = os.urandom(SECRET_BYTES)
        self._listeners: dict[tuple[str, bool], tuple[socket.socket, threading.Thread]] = {}
        self._expected: dict[bytes, Expected] = {}  # by ticket

    def place(self, host: str, told: Sequence[str], *, sealed: bool) -> Place:
        """Listen at that address, if nobody does yet: what is to be told of it.

        Raises:
            OSError: it cannot be listened at.
        """
        at = host, sealed
        with self._lock:
            if self._closed:
                return Place([], why="it has left its session")
            if at not in self._listeners:
                listener = listen(host)
                acceptor = threading.Thread(
                    target=self._accept, args=(listener, sealed), name="monarch-data-accept",
                    daemon=True,
                )  # fmt: skip
                self._listeners[at] = listener, acceptor
                acceptor.start()
            port = self._listeners[at][0].getsockname()[1]
        return Place(list(told), port, self._secret, sealed=sealed)

    def _accept(self, listener: socket.socket, sealed: bool) -> None:
        while True:
            try:
                made, _ = listener.accept()
            except OSError:
                if self._closed:
                    return
                if self._refusals.note("accept"):
                    log.warning("accepting a connection failed", exc_info=True)
                time.sleep(_NO_ROOM_S)  # no descriptor is free, and none will be at once
                continue
            ends = _Ends(partial(hang_up, made), made.close)
            if not self._begin(partial(self._meet, made, sealed), ends):
                made.close()
                return

    def _begin(self, serve: Callable[[], None], ends: _Ends) -> bool:
        """Have a thread serve a connection; False if we serve nobody any more."""
        thread = threading.Thread(target=serve, name="monarch-data-serve", daemon=True)
        with self._lock:
            if self._closed:
                return False
            self._serving[thread] = ends
        thread.start()
        return True

    def _meet(self, made: socket.socket, sealed: bool) -> None:
        """Serve who has connected, if he is a peer."""
        connection = None
        try:
            tune(made)
            made.settimeout(HELLO_S)  # who is no peer must not hold a thread
            connection = admit(made, self._secret, sealed=sealed)
        except OSError:
            pass  # it went
        finally:
            if connection is None:
                self._forget()
                made.close()
        if connection is not None:
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.limit(HELLO_S)
            while self._request(connection):
                connection.limit(None)
        except OSError:
            pass  # it went; what it was doing is its own trouble
        finally:
            self._forget()
            connection.close()

    def _forget(self) -> None:
        with self._lock:
            del self._serving[threading.current_thread()]

    def _request(self, connection: Connection) -> bool:
        """Serve one request; False to hang up."""
        head = bytearray(REQUEST.size)
        if not connection.receive(memoryview(head)):
            return False
        magic, what, slot, incarnation, key, whole, offset, size = REQUEST.unpack(head)
        if magic != MAGIC or not (what in (ECHO, HERE) or what in self._requests.kinds):
            self._refuse(connection, "what it says is no request")
            return False
        if not same(incarnation, self._requests.incarnation):
            self._refuse(connection, "it takes this for another process")
            answer(connection, WRONG_PROCESS)
            return False
        if what == HERE:
            with self._lock:
                expected = self._expected.pop(key, None)
            if expected is not None:  # otherwise it is not waited for any more
                expected.came.put(connection.again())
            return False
        if what == ECHO:
            block = bytearray(min(size, ECHO_BYTES))
            answer(connection, DONE)
            if not connection.receive(memoryview(block)):
                return False
            connection.send(bytes(block))
            return True

        return self._requests.serve(connection, Request(what, slot, key, whole, offset, size))

    def _refuse(self, connection: Connection, why: str) -> None:
        with self._lock:
            number = self._refusals.note(why)
        if number:
            log.warning("hung up on %s: %s (%d so far)", connection.peer, why, number)

    def call(
        self,
        place: Place,
        incarnation: bytes,
        ticket: bytes,
        deadline: float,
        opener: Opener | None = None,
    ) -> None:
        """Connect to a process that cannot connect to us, and serve it. `opener`: see `dial`.

        Raises:
            OSError: it cannot be reached.
        """
        connection = dial(place, deadline, opener)
        try:
            connection.send(REQUEST.pack(MAGIC, HERE, 0, incarnation, ticket, 0, 0, 0))
        except BaseException:
            connection.close()
            raise
        ends = _Ends(connection.hang_up, connection.close)
        if not self._begin(partial(self._serve, connection), ends):
            connection.close()
            raise ConnectionError("it has left its session")

    def expect(self) -> Expected:
        """A connection that its owner makes is to come, under a ticket that nobody else knows."""
        expected = Expected()
        with self._lock:
            if self._closed:
                raise ConnectionError("this process leaves its session")
            self._expected[expected.ticket] = expected
        return expected

    def expect_no_more(self, expected: Expected) -> None:
        """What has not been taken of it by now is hung up on."""
        with self._lock:
            self._expected.pop(expected.ticket, None)
        while not expected.came.empty():
            connection = expected.came.get()
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """End all threads. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            ending = [*self._serving]
            for expected in self._expected.values():
                expected.came.put(None)
            for ends in self._serving.values():
                ends.hang_up()
        for listener, acceptor in self._listeners.values():
            hang_up(listener)  # which wakes the thread that accepts
            acceptor.join()
            listener.close()
        for thread in ending:
            thread.join()

    def forked(self) -> None:
        """In a fork of this process: close its copies of all sockets. Takes no lock."""
        self._closed = True
        for listener, _ in list(self._listeners.values()):
            listener.close()
        for ends in list(self._serving.values()):
            ends.close()


class _Ends(NamedTuple):
    """What ends all that blocks in a connection, at both ends; what closes it in this process."""

    hang_up: Callable[[], None]
    close: Callable[[], None]


class Expected:
    """A connection that the other side is to make; None comes if nobody waits for it any more."""

    def __init__(self) -> None:
        self.ticket = os.urandom(KEY_BYTES)
        self.came: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()

    def taken(self, deadline: float) -> Connection:
        """The connection, once it is there.

        Raises:
            OSError: it has not come by then.
        """
        try:
            connection = self.came.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            connection = None
        if connection is None:
            raise ConnectionError("the connection that its owner has made did not arrive")
        return connection


def answer(connection: Connection, status: int, done: int = 0) -> None:
    """Say how a request went."""
    connection.send(ANSWER.pack(MAGIC, status, done))
