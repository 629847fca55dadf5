"""Ports: where messages go that are no calls. Give the Port away; read its receiver here.

Runs in: any process. `send` may be used by any process of the session; messages of one sender to
one port arrive in the order sent. A port whose receiver is gone drops what it is sent.

A port is also how an endpoint answers: a call's own number is one, so `explicit_response_port` and
`send(..., port=...)` need no other machinery than replies.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

from monarch._src.actor.context import current
from monarch._src.actor.future import Future
from monarch._src.actor.remote import error_for, pack_exception, rebuild, ship, unpack, unship
from monarch._src.actor.runtime import Runtime, is_forked, runtime
from monarch._src.core.metrics import EndpointCounts
from monarch._src.logs.written import LONG_NS, WRITTEN
from monarch._src.net.baton import FORKED
from monarch._src.net.interrupt import GuardedLock
from monarch._src.net.waitable import RuntimeEnded
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import OK, THROWN, Reply

R = TypeVar("R")


class Port(Generic[R]):
    """The sending end. Pickles; equal ports lead to the same receiver."""

    __slots__ = ("_address", "_counts", "_node", "_number", "_once", "_rank", "_used")

    def __init__(
        self,
        node: str,
        address: str,
        number: int,
        rank: int | None = None,
        *,
        once: bool = False,
        counts: EndpointCounts | None = None,
    ) -> None:
        """`counts`: of the endpoint that answers through it, while it stays in this process."""
        self._node = node
        self._address = address
        self._number = number
        self._rank = rank
        self._once = once
        self._counts = counts
        self._used = False

    @property
    def number(self) -> int:
        """Its number in the process that receives; 0 for one that nobody reads."""
        return self._number

    @property
    def node(self) -> str:
        """The process that receives."""
        return self._node

    @property
    def address(self) -> str:
        """Where that process listens."""
        return self._address

    def send(self, value: R) -> None:
        """Send a value.

        Raises:
            RuntimeError: a once-port that has been used.
            TypeError: the value cannot be pickled.
        """
        try:
            payload = ship(value, loose=True)
        except Exception as error:
            raise TypeError(
                f"a {type(value).__qualname__} cannot be sent to another process: {error}"
            ) from error
        self._post(OK, payload)

    def exception(self, error: BaseException) -> None:
        """Send an exception, which whoever reads the port is raised as it is.

        Raises:
            RuntimeError: a once-port that has been used.
        """
        self._post(THROWN, pack_exception(error))

    def _post(self, status: int, payload: Payload) -> None:
        if is_forked():
            raise RuntimeEnded(FORKED)
        if self._once and self._used:
            raise RuntimeError("this port takes one message, and has had it")
        self._used = True
        counts = self._counts
        if counts is not None:
            counts.bytes_out += payload.nbytes
            if status != OK:
                counts.errors += 1
        if self._number:
            run = runtime()
            run.routes.reach_node(self._node, self._address)
            site = run.node.site_of(self._node)
            if self._node != run.name:
                far = site != run.node.site
                payload = run.payloads.place(payload, sole=True, far=far)
            if site != run.node.site:
                run.node.rooms.wait(site, large=bool(payload.buffers))
            status |= WRITTEN.since(self._node, LONG_NS)
            reply = Reply(self._number, self._rank or 0, status)
            if self._rank is None:  # no answer of an endpoint: its sender hears if nobody reads it
                context = current.get()
                reply.sent_by = 0 if context is None else context.actor_instance.actor_id.uid
            if not run.node.send(self._node, reply, payload) and self._rank is None:
                run.returns.port_gone(self._node, self._number, reply.sent_by)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Port):
            return NotImplemented
        return (self._node, self._number, self._rank) == (other._node, other._number, other._rank)

    def __hash__(self) -> int:
        return hash((self._node, self._number, self._rank))

    def __reduce__(self) -> tuple[Any, ...]:
        used = self._used and self._once
        return _port, (self._node, self._address, self._number, self._rank, self._once, used)

    def __repr__(self) -> str:
        return f"<Port {self._number} of {self._node}>"


def _port(
    node: str, address: str, number: int, rank: int | None, once: bool, used: bool
) -> Port[Any]:
    port: Port[Any] = Port(node, address, number, rank, once=once)
    port._used = used  # pyright: ignore[reportPrivateUsage]
    return port


def unheeded(port: Port[R]) -> Port[R]:
    """The same port for those who don't care: what nobody reads any more is dropped.

    Otherwise the actor that sent it is told, and fails of that unless it handles it.
    """
    return _port(port.node, port.address, port.number, 0, False, False)


class _Awaited:
    """A future for a message, and whether it is to say who sent that."""

    __slots__ = ("future", "ranked")

    def __init__(self, future: Future[Any], ranked: bool) -> None:
        self.future = future
        self.ranked = ranked

    def settle(self, rank: int, status: int, payload: Payload) -> None:
        """This is the message."""

        def decode() -> Any:
            value = decoded(status, payload)
            return (rank, value) if self.ranked else value

        self.future.settle(decode)


class PortReceiver(Generic[R]):
    """The receiving end; stays where it was made.

    The port is closed when nobody has this any more, nor waits for one of its futures.
    """

    def __init__(self, run: Runtime, *, once: bool) -> None:
        self._runtime = run
        self._once = once
        self._taken = False
        self._lock = GuardedLock()
        self._messages: deque[tuple[int, int, Payload]] = deque()
        self._waiting: deque[_Awaited] = deque()
        self._unread: deque[_Awaited] = deque()  # settled when nobody waited for them any more
        self.number = run.open_port(self)

    def __repr__(self) -> str:
        return f"<PortReceiver {self.number}, {len(self._messages)} unread>"

    def recv(self) -> Future[R]:
        """The next message. A future that timed out, or whose await was cancelled, loses none.

        Raises:
            RuntimeError: a once-port that has been read.
        """
        return self._next(ranked=False)

    def ranked(self) -> PortReceiver[tuple[int, R]]:
        """This receiver, as one that gives (rank of the sender in the slice called, value).

        Both read the same messages, each of which goes to one of them.
        """
        return _RankedReceiver(self)

    def _next(self, *, ranked: bool) -> Future[Any]:
        with self._lock:
            awaited = self._given_up()
            if awaited is not None:
                awaited.ranked = ranked
                awaited.future.given_up = False
                return awaited.future
            if self._once and self._taken:
                raise RuntimeError("this port takes one message, and it has been read")
            self._taken = True
            future = self._runtime.new_future()
            awaited = _Awaited(future, ranked)
            if self._messages:
                awaited.settle(*self._messages.popleft())
            else:
                future.source = self
                self._waiting.append(awaited)
            return future

    def deliver(self, rank: int, status: int, payload: Payload) -> None:
        """A message came. On the thread that receives."""
        with self._lock:
            if not self._waiting:
                self._messages.append((rank, status, payload))
                return
            awaited = self._waiting.popleft()
            awaited.future.source = None
            awaited.settle(rank, status, payload)
            if awaited.future.given_up:
                self._unread.append(awaited)

    def _given_up(self) -> _Awaited | None:
        """A future that somebody stopped waiting for: what it gets is the next message."""
        while self._unread:
            awaited = self._unread.popleft()
            if awaited.future.given_up:  # not looked at since
                return awaited
        return next((one for one in self._waiting if one.future.given_up), None)


class _RankedReceiver(PortReceiver[tuple[int, R]]):
    """Another way to read a receiver, which it keeps."""

    def __init__(self, of: PortReceiver[R]) -> None:
        # Nothing of its own: what comes is handed to the other one.
        self._of = of
        self.number = of.number

    def __repr__(self) -> str:
        return f"{self._of!r} with ranks"

    def recv(self) -> Future[tuple[int, R]]:
        return self._of._next(ranked=True)

    def ranked(self) -> Any:
        return self


def decoded(status: int, payload: Payload) -> Any:
    """The value of a reply, or raise what it carries."""
    if status == OK:
        return unship(payload)
    if status == THROWN:
        raise rebuild(payload)
    failure, exception = unpack(payload)
    raise error_for(status, [failure], exception())


class Channel(Generic[R]):
    """Makes ports."""

    @staticmethod
    def open(once: bool = False) -> tuple[Port[R], PortReceiver[R]]:
        """A port and its receiver; a once-port takes a single message."""
        run = runtime()
        receiver: PortReceiver[R] = PortReceiver(run, once=once)
        return Port(run.name, run.node.address, receiver.number, once=once), receiver

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[R], PortReceiver[tuple[int, R]]]:
        """The same, whose receiver gives (rank of the sender in the slice called, value)."""
        port, receiver = Channel[R].open(once)
        return port, receiver.ranked()
