"""Accepts TCP connections of the data plane, and serves the requests that arrive over them.

The owner serves on threads of their own, so its actors need not run; but these threads need the GIL
between system calls. Once a connection exists it does not matter which side made it: an owner that
cannot be dialled connects to the process that asked for it (`net.streams.dialling`), and
begins with a request HERE and the ticket that it was given. The messages are described in
`net.streams.protocol`. An object of the owner handles the requests: for registered memory
`rdma.transports.tcp_regions`, for payloads `payload.hosts.server`.

The server checks the incarnation first, and closes connections that send anything but requests.

Runs in: the owner, from the first request for its address on; one thread for each address accepts,
and one serves each connection.
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

from monarch._src.net.streams.connection import Connection, hang_up
from monarch._src.net.streams.protocol import (
    ANSWER,
    DONE,
    ECHO,
    ECHO_BYTES,
    HELLO_S,
    HERE,
    MAGIC,
    REQUEST,
    TICKET_BYTES,
    WRONG_PROCESS,
    Request,
)
from monarch._src.net.streams.sockets import (
    SECRET_BYTES,
    Opener,
    ServerAddress,
    admit,
    dial,
    listen,
    tune,
)
from monarch._src.rate_limited_log import Tally
from monarch._src.wire.encryption import same_secret

log = logging.getLogger("monarch.net")
_NO_ROOM_S = 0.05


class Requests(Protocol):
    """Serves the requests that arrive over a server's connections, on their threads.

    incarnation: that of this process; requests for another are refused. kinds: those served here.
    """

    @property
    def incarnation(self) -> bytes: ...

    @property
    def kinds(self) -> Sequence[int]: ...

    def serve(self, connection: Connection, request: Request) -> bool:
        """Serve one request; False closes the connection. OSError: the other side has closed it."""
        ...


class TcpServer:
    """Serves requests to this process, at one or several addresses."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._lock = threading.Lock()
        self._serving: dict[threading.Thread, _Ends] = {}
        self._refusals: Tally[str] = Tally()
        self._closed = False
        self._secret = os.urandom(SECRET_BYTES)
        self._listeners: dict[tuple[str, bool], tuple[socket.socket, threading.Thread]] = {}
        self._expected: dict[bytes, Expected] = {}  # by ticket

    def place(self, host: str, told: Sequence[str], *, sealed: bool) -> ServerAddress:
        """Listen at that address, unless the server does already. Returns the place to announce.

        Raises:
            OSError: the server cannot listen there.
        """
        at = host, sealed
        with self._lock:
            if self._closed:
                return ServerAddress([], why="it has left its session")
            if at not in self._listeners:
                listener = listen(host)
                acceptor = threading.Thread(
                    target=self._accept, args=(listener, sealed), name="monarch-data-accept",
                    daemon=True,
                )  # fmt: skip
                self._listeners[at] = listener, acceptor
                acceptor.start()
            port = self._listeners[at][0].getsockname()[1]
        return ServerAddress(list(told), port, self._secret, sealed=sealed)

    def _accept(self, listener: socket.socket, sealed: bool) -> None:
        while True:
            try:
                made, _ = listener.accept()
            except OSError:
                if self._closed:
                    return
                if self._refusals.note("accept"):
                    log.warning("accepting a connection failed", exc_info=True)
                time.sleep(_NO_ROOM_S)  # the descriptors are used up, and stay so for a while
                continue
            ends = _Ends(partial(hang_up, made), made.close)
            if not self._begin(partial(self._meet, made, sealed), ends):
                made.close()
                return

    def _begin(self, serve: Callable[[], None], ends: _Ends) -> bool:
        """Serve a connection on a new thread; False if the server is closed."""
        thread = threading.Thread(target=serve, name="monarch-data-serve", daemon=True)
        with self._lock:
            if self._closed:
                return False
            self._serving[thread] = ends
        thread.start()
        return True

    def _meet(self, made: socket.socket, sealed: bool) -> None:
        """Authenticate a connection, then serve it."""
        connection = None
        try:
            tune(made)
            made.settimeout(HELLO_S)  # a stranger must not hold a thread
            connection = admit(made, self._secret, sealed=sealed)
        except OSError:
            pass  # the other side has closed it
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
            pass  # the other side has closed it, and handles its own failure
        finally:
            self._forget()
            connection.close()

    def _forget(self) -> None:
        with self._lock:
            del self._serving[threading.current_thread()]

    def _request(self, connection: Connection) -> bool:
        """Serve one request; False to close the connection."""
        head = bytearray(REQUEST.size)
        if not connection.receive(memoryview(head)):
            return False
        magic, what, slot, incarnation, key, whole, offset, size = REQUEST.unpack(head)
        if magic != MAGIC or not (what in (ECHO, HERE) or what in self._requests.kinds):
            self._refuse(connection, "it sent bytes that are not a request")
            return False
        if not same_secret(incarnation, self._requests.incarnation):
            self._refuse(connection, "its request is for another process")
            answer(connection, WRONG_PROCESS)
            return False
        if what == HERE:
            with self._lock:
                expected = self._expected.pop(key, None)
            if expected is not None:  # otherwise the request was given up
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
        place: ServerAddress,
        incarnation: bytes,
        ticket: bytes,
        deadline: float,
        opener: Opener | None = None,
    ) -> None:
        """Connect to a process that cannot dial this one, and serve it. `opener`: see `dial`.

        Raises:
            OSError: the process cannot be reached.
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
        """Expect a connection from an owner; it has to show the secret ticket of the result."""
        expected = Expected()
        with self._lock:
            if self._closed:
                raise ConnectionError("this process is leaving its session")
            self._expected[expected.ticket] = expected
        return expected

    def expect_no_more(self, expected: Expected) -> None:
        """Stop to expect it. Connections that arrived but were not taken are closed."""
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
            hang_up(listener)  # wakes the accepting thread
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
    """Functions to shut a connection down at both ends, and to close it in this process."""

    hang_up: Callable[[], None]
    close: Callable[[], None]


class Expected:
    """A connection that another process makes; `came` gets None if the server closes."""

    def __init__(self) -> None:
        self.ticket = os.urandom(TICKET_BYTES)
        self.came: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()

    def taken(self, deadline: float) -> Connection:
        """Wait for the connection.

        Raises:
            OSError: it has not come by the deadline.
        """
        try:
            connection = self.came.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            connection = None
        if connection is None:
            raise ConnectionError("the connection of the owner did not arrive")
        return connection


def answer(connection: Connection, status: int, done: int = 0) -> None:
    """Send the status of a request."""
    connection.send(ANSWER.pack(MAGIC, status, done))
