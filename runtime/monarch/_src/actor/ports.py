"""Ports: a sending end, which can be passed to any process, and a receiver, which stays here.

Runs in: any process of the session. Messages of one sender to one port arrive in the order of
sending. A port without a receiver drops its messages.

Endpoints with `explicit_response_port` answer through a port: the number of a call is the number of
a port too, so its messages are replies.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from monarch._src.actor.call.pickling_errors import as_refusal
from monarch._src.actor.context import current
from monarch._src.actor.errors.remote import (
    error_for,
    pack_exception,
    unpack_exception,
    unpack_failure,
)
from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime, is_forked, runtime
from monarch._src.actor.serialize import pack_value, unpack_value
from monarch._src.actor.state.endpoint_metrics import EndpointCounts
from monarch._src.logs.output_counters import LONG_NS, WRITTEN
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.local.leader import FORKED
from monarch._src.net.local.waitable import RuntimeEnded
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
        """`counts`: the metrics of the endpoint that answers through this port, in this process."""
        self._node = node
        self._address = address
        self._number = number
        self._rank = rank
        self._once = once
        self._counts = counts
        self._used = False

    @property
    def number(self) -> int:
        """Its number in the receiving process; 0 if it has no receiver."""
        return self._number

    @property
    def node(self) -> str:
        """The receiving process."""
        return self._node

    @property
    def address(self) -> str:
        """The address of the receiving process."""
        return self._address

    def send(self, value: R) -> None:
        """Send a value.

        Raises:
            RuntimeError: this is a once-port, and it has been used.
            TypeError: the value cannot be pickled.
        """
        try:
            payload = pack_value(value, loose=True)
        except Exception as error:
            text = f"a {type(value).__qualname__} cannot be sent to another process: {error}"
            raise as_refusal(text, error) from error
        self._post(OK, payload)

    def exception(self, error: BaseException) -> None:
        """Send an exception, which `recv().get()` raises unchanged.

        Raises:
            RuntimeError: this is a once-port, and it has been used.
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
                run.node.send_limits.wait(site, large=bool(payload.buffers))
            status |= WRITTEN.since(self._node, LONG_NS)
            reply = Reply(self._number, self._rank or 0, status)
            if self._rank is None:  # no answer, so the sender learns if it is not delivered
                context = current.get()
                reply.sent_by = 0 if context is None else context.actor_instance.actor_id.uid
            if not run.node.send(self._node, reply, payload) and self._rank is None:
                run.undeliverable.on_port_gone(self._node, self._number, reply.sent_by)

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
    """The same port, without reports of undelivered messages.

    Through other ports, an actor whose message finds no receiver fails, unless its
    `_handle_undeliverable_message` handles that.
    """
    return _port(port.node, port.address, port.number, 0, False, False)


class _Message(msgspec.Struct, eq=False):
    """A message to a port; `number` counts the messages of one receiver."""

    number: int
    rank: int
    status: int
    payload: Payload


class _Claim(weakref.ref["_Received[Any]"]):
    """The place of a future among those of its receiver, and the message that the future was given.

    Once the future is gone, the claim reports that to the receiver. A `__del__` of the future could
    not: while it runs, another thread can get hold of the future by a weak reference and give it a
    message, which would be lost.
    """

    __slots__ = ("message", "number", "receiver")

    def __new__(cls, future: _Received[Any], receiver: PortReceiver[Any], number: int) -> _Claim:
        return super().__new__(cls, future, _on_dropped)

    def __init__(self, future: _Received[Any], receiver: PortReceiver[Any], number: int) -> None:
        """`number`: the position of the future among those of the receiver."""
        self.receiver = weakref.ref(receiver)
        self.number = number
        # None before the message arrives, and False once it has been read.
        self.message: _Message | Literal[False] | None = None


def _on_dropped(claim: Any) -> None:
    # The garbage collector runs this on any thread, at any point of its code.
    receiver = claim.receiver()
    if receiver is not None:
        receiver.dropped(claim)


class _Received(Future[R]):
    """The future of one `recv()`.

    It claims the next message. If it is dropped before its outcome is read, the message returns to
    the receiver, or its place in the queue is given up.
    """

    __slots__ = ("__weakref__", "_rank", "_stopped_waiting", "claim", "ranked")

    def __init__(self, receiver: PortReceiver[Any], number: int, *, ranked: bool) -> None:
        """`number`: its position among the futures of that receiver."""
        self._stopped_waiting = False
        super().__init__(*receiver.waits)
        self._rank = 0
        self.claim = _Claim(self, receiver, number)
        self.ranked = ranked

    def give(self, message: _Message) -> None:
        """Settle with that message."""
        self.claim.message = message
        self._rank = message.rank
        # Not a bound method, which would make a reference cycle.
        self.settle(partial(decoded, message.status, message.payload))

    @property
    def is_read(self) -> bool:
        """Whether its outcome has been read."""
        return self.done and not self.claim.message

    @property
    def abandoned(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the last wait for it has ended without a message."""
        return self._stopped_waiting

    @abandoned.setter
    def abandoned(self, value: bool) -> None:
        if value and not self._stopped_waiting:
            receiver = self.claim.receiver()
            if receiver is not None:
                receiver.abandoned.append(self.claim)
        self._stopped_waiting = value

    def on_done(self, callback: Callable[[], None], *, receives: bool = False) -> None:
        # Keep it alive: an asyncio future that waits for it does not refer to it.
        receiver = self.claim.receiver()
        if receiver is not None:
            receiver.hold(self)
        super().on_done(callback, receives=receives)

    def _result(self) -> R:
        try:
            value: Any = super()._result()
        finally:
            # Otherwise the stack was too full, and a later read may succeed.
            if self._decode is None:
                self.claim.message = False
        return cast(R, (self._rank, value)) if self.ranked else value


def is_of_port(future: Future[Any]) -> bool:
    """Whether that future stands for the next message to a port."""
    return isinstance(future, _Received)


class PortReceiver(Generic[R]):
    """The receiving end of a port. It cannot be sent to another process.

    The port closes when the receiver is garbage collected, which waiting for one of its futures
    prevents.

    Invariants: under the lock, messages and waiting futures are not queued both, and messages are
    in the order of arrival. Messages that dropped futures return are sorted in by the thread that
    holds the lock, or by the next one, since the garbage collector may interrupt either.
    """

    def __init__(self, run: Runtime, *, once: bool) -> None:
        self.waits = run.future_parts()
        self._once = once
        self._lock = GuardedLock()
        self._received_count = self._claim_count = 0
        self._messages: deque[_Message] = deque()
        # By number, of futures that exist: only a claim that is kept reports the future's end.
        self._kept_claims: dict[int, _Claim] = {}
        self._claims: deque[_Claim] = deque()  # without a message, oldest first
        self._held: set[_Received[Any]] = set()  # futures with a registered callback
        # Of dropped futures; None: a claim without a message.
        self._returned: deque[_Message | None] = deque()
        self.abandoned: deque[_Claim] = deque()
        self.number = run.open_port(self)

    def __repr__(self) -> str:
        return f"<PortReceiver {self.number}, {len(self._messages)} unread>"

    def recv(self) -> Future[R]:
        """A future for the next message. A time-out or a cancelled await loses no message.

        Futures receive messages in the order in which `recv` was called. A future that is dropped
        before its outcome is read takes no message, and leaves a once-port unread.

        Raises:
            RuntimeError: this is a once-port, and it has been read.
        """
        return self._next(ranked=False)

    def ranked(self) -> PortReceiver[tuple[int, R]]:
        """A view of this receiver that yields pairs of the sender's rank and a value.

        The rank is that in the called slice. Both receivers read the same messages; each message
        goes to one of them.
        """
        return _RankedReceiver(self)

    def _next(self, *, ranked: bool) -> Future[Any]:
        self._tidy()
        with self._lock:
            future = self._oldest_given_up()
            if future is not None:
                future.ranked = ranked
                future.abandoned = False
            elif self._once and self._is_taken():
                raise RuntimeError("this port takes one message, and it has been read")
            else:
                self._claim_count += 1
                future = _Received[Any](self, self._claim_count, ranked=ranked)
                self._kept_claims[self._claim_count] = future.claim
                if self._messages:
                    future.give(self._messages.popleft())
                else:
                    future.source = self
                    self._claims.append(future.claim)
        self._tidy()
        return future

    def _is_taken(self) -> bool:
        """Whether the message of a once-port has been claimed or read."""
        if self._messages:
            return False
        return bool(self._received_count) or any(claim() is not None for claim in self._claims)

    def _oldest_given_up(self) -> _Received[Any] | None:
        """The oldest future whose last wait was abandoned. Under the lock."""
        found: list[_Received[Any]] = []
        for _ in range(len(self.abandoned)):
            future = self.abandoned.popleft()()
            if future is not None and future.abandoned and not future.is_read:
                found.append(future)
        found.sort(key=lambda future: future.claim.number)
        self.abandoned.extend(future.claim for future in found[1:])
        return found[0] if found else None

    def deliver(self, rank: int, status: int, payload: Payload) -> None:
        """Take in a message. Called on the receiving thread."""
        with self._lock:
            self._received_count += 1
            self._place(_Message(self._received_count, rank, status, payload))
        self._tidy()

    def hold(self, future: _Received[Any]) -> None:
        """Keep a future alive until its message arrives. Any thread."""
        with self._lock:
            if not future.done:
                self._held.add(future)
        self._tidy()

    def dropped(self, claim: _Claim) -> None:
        """The future of that claim is gone. Called by the garbage collector."""
        self._kept_claims.pop(claim.number, None)
        if claim.message is not False:
            self._returned.append(claim.message)
            self._tidy()

    def _tidy(self) -> None:
        """Sort in the messages that dropped futures have returned. Never blocks."""
        while self._returned and self._lock.enter_if_free():
            try:
                while self._returned:
                    message = self._returned.popleft()
                    self._claims = deque(claim for claim in self._claims if claim() is not None)
                    if message is not None:
                        self._place(message)
            finally:
                self._lock.leave()

    def _place(self, message: _Message) -> None:
        """Give a message to the oldest claim, or queue it in order. Under the lock."""
        while self._claims:
            future = self._claims.popleft()()
            if future is not None:
                self._held.discard(future)
                future.source = None
                future.give(message)
                return
        at = len(self._messages)
        while at and self._messages[at - 1].number > message.number:
            at -= 1
        self._messages.insert(at, message)


class _RankedReceiver(PortReceiver[tuple[int, R]]):
    """A view of a receiver, which it keeps alive."""

    def __init__(self, of: PortReceiver[R]) -> None:
        # No port of its own: messages arrive at the other receiver.
        self._of = of
        self.number = of.number

    def __repr__(self) -> str:
        return f"{self._of!r} with ranks"

    def recv(self) -> Future[tuple[int, R]]:
        return self._of._next(ranked=True)

    def ranked(self) -> Any:
        return self


def decoded(status: int, payload: Payload) -> Any:
    """The value of a reply; raises the exception or failure that it carries instead."""
    if status == OK:
        return unpack_value(payload)
    if status == THROWN:
        raise unpack_exception(payload)
    failure, exception = unpack_failure(payload)
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
        """A port, and a receiver that yields pairs.

        The sender's rank in the called slice, a value.
        """
        port, receiver = Channel[R].open(once)
        return port, receiver.ranked()
