"""One end of a link between two nodes on different hosts. No I/O, no clock.

A link survives broken connections. A connection loses the data that is on its way when it breaks;
the link also tolerates a connection that loses, duplicates, delays and reorders, as TCP does not.
The two ends form a *session*, in which each message arrives once, in order, or the sender learns
that the other end is lost.

    DOWN --connected--> GREETING --their hello--> UP        any of the three --> LOST, LEFT, REFUSED
      ^-----disconnected----+-----------------------+

- *Link down* is not a failure: unacknowledged messages are kept, and sent again after the next
  hello. *Lost* is: the link was down for `patience_s`, or its address has refused connections for
  `refused_s`, since no process listens there any more, or the other end has a new incarnation, or
  has itself given up the session. It is final for both ends: an end that has declared the other
  lost answers every later message of that session with a Bye.
- A session is identified by the incarnations of its two ends. Every message except a hello carries
  the exclusive or of both numbers, so that a late message of an earlier incarnation is recognised.
  The incarnations of one node increase, so that an old hello is recognised; `new_incarnation` makes
  them. A process that makes a new end begins a new incarnation of it.
- Numbers and acknowledgements are cumulative. There is no retransmission timer: messages that were
  lost with a connection are sent again after the hello; other losses are noticed by the answer to a
  ping, which contains the number of the last received message.
- *Credit*: the receiving end announces up to which byte of the session it has room, and raises that
  limit as messages are handled. A message may leave if it begins before the limit, so one end holds
  at most the window and one message for the other. The queue for sending is bounded too: `send`
  refuses beyond `queue`, and `Room` reports when it accepts messages again. Each link has its own
  bounds, so a slow peer does not affect others.
- *Silence*: a connection that is up usually proves that the process lives, since the transport
  sends heartbeats of its own, which a busy process answers too. With `silence_s`, pings and hellos
  have to be answered as well; this is only for peers that run no user code.

Prior art: the reliable sessions of CORBA, TIPC and of the Tandem Guardian; credit as in HTTP/2.
Events are methods named in the past tense; they return actions, in order, all of which have to be
carried out before the next event is reported. `now` is seconds on any monotonic clock. Not
thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from monarch._src.net.state.link_actions import (
    FINAL,
    TRANSITIONS,
    Action,
    Bounds,
    Deliver,
    LinkDown,
    LinkState,
    LinkUp,
    PeerLeft,
    PeerLost,
    PeerRefused,
    Room,
    Transmit,
)
from monarch._src.wire.frames import Buffer
from monarch._src.wire.link_protocol import (
    Ack,
    AnyLinkMessage,
    Bye,
    Data,
    LinkHello,
    LinkRefused,
    Ping,
    Pong,
)
from monarch._src.wire.versions import mismatch

ACK_EVERY = 64  # messages


def new_incarnation(now_ns: int, chance: int) -> int:
    """The number of an incarnation that begins at that time of day.

    `chance` is random, so that the exclusive or of two such numbers is unique.
    """
    return (now_ns // 1_000_000) << 20 | chance & 0xFFFFF


class NoRoomError(Exception):
    """The queue for that peer is full."""


class _Sent(msgspec.Struct, gc=False):
    """An unacknowledged message. `start`: its offset in the stream of all sent bytes."""

    number: int
    start: int
    size: int
    frames: Sequence[Buffer]


class Link:
    """One end of one session. A final one may be followed by another with a larger incarnation."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        versions: Mapping[str, str],
        peer: str,
        bounds: Bounds,
        now: float,
    ) -> None:
        """`node`, `incarnation`, `versions` are those of this side; incarnations start at 1."""
        self.node = node
        self.incarnation = incarnation
        self.peer = peer
        self.peer_incarnation = 0  # above 0 once its hello was accepted
        self.state: LinkState = LinkState.DOWN
        self.is_final = False  # this session is over
        self.why = ""  # the reason why it is final
        self.bye_received = False  # the other end has said goodbye
        self.story: deque[tuple[float, LinkState]] = deque([(now, self.state)], maxlen=64)
        self.round_trip_s: float | None = None
        self._versions = dict(versions)
        self._bounds = bounds
        self._down_since = now  # while not UP
        self._refused_since: float | None = None  # the first refused connection while DOWN
        self._looked_at = now
        self._next_ping = now
        self._answered_at = now  # when the last answered ping was sent
        self._was_up = False
        self._told_up = False  # since the last LinkDown
        # Outgoing. All and only the unacknowledged messages are in one of the two, in order; those
        # in `_flying` were transmitted since the last hello, or the last sign of a loss.
        self._flying: deque[_Sent] = deque()
        self._waiting: deque[_Sent] = deque()
        self._number = 0  # of the last message
        self._acked = 0
        self._end = 0  # bytes of all messages so far
        self._held = 0  # bytes in the two queues
        self._limit = 0  # of the other end
        self._refused = False
        self._pings = 0
        self._pinged: tuple[int, int, float] | None = None  # last ping: number, flown by then, time
        # Incoming.
        self._received = 0
        self._taken = 0  # bytes delivered
        self._handled = 0  # bytes of them that have been handled
        self._told_limit = bounds.window
        self._told_received = 0

    def bound(self, bounds: Bounds) -> None:
        """Change the times; the sizes stay."""
        self._bounds = msgspec.structs.replace(
            self._bounds, patience_s=bounds.patience_s, ping_s=bounds.ping_s,
            silence_s=bounds.silence_s, refused_s=bounds.refused_s,
        )  # fmt: skip

    @property
    def has_room(self) -> bool:
        """Whether `send` would accept a message."""
        return self._held < self._bounds.queue

    def asked_for_room(self) -> bool:
        """Whether it `has_room`; if not, `Room` will follow."""
        self._refused = self._refused or not self.has_room
        return self.has_room

    @property
    def unacknowledged(self) -> int:
        """How many messages are unacknowledged."""
        return len(self._flying) + len(self._waiting)

    @property
    def held(self) -> int:
        """Bytes of unacknowledged messages."""
        return self._held

    @property
    def session(self) -> int:
        """The number of the session in all its messages; 0 before the other end is known."""
        return self.incarnation ^ self.peer_incarnation if self.peer_incarnation else 0

    # --- the connection ---------------------------------------------------------------------------

    def connected(self, now: float) -> list[Action]:
        """A connection was made, possibly in place of another."""
        if self.is_final:
            return []
        self._refused_since = None
        if self.state is LinkState.UP:
            self._down_since = now
        if self.state is not LinkState.GREETING:
            self._move(LinkState.GREETING, now)
        self._next_ping = now + self._bounds.ping_s
        return [self._hello(answer=True)]

    def disconnected(self, now: float) -> list[Action]:
        """The connection has ended."""
        if self.state not in (LinkState.UP, LinkState.GREETING):
            return []
        if self.state is LinkState.UP:
            self._down_since = now
        self._move(LinkState.DOWN, now)
        told_up, self._told_up = self._told_up, False
        return [LinkDown()] if told_up else []

    def connection_refused(self, now: float) -> list[Action]:
        """A new connection was refused: the host answers, and no process listens at the address."""
        if self.state is not LinkState.DOWN or not self._was_up or self._bounds.refused_s is None:
            return []
        if self._refused_since is None:
            self._refused_since = now
        refused = now - self._refused_since
        if refused < self._bounds.refused_s:
            return []
        return self._lose(f"no process has listened at its address for {refused:.1f} s", now)

    # --- messages ---------------------------------------------------------------------------------

    def send(self, frames: Sequence[Buffer], now: float) -> list[Action]:
        """Send a message of at least one frame, whether the link is up or not.

        Raises:
            NoRoomError: `has_room` is false; `Room` will follow. ConnectionError: it is final.
        """
        if self.is_final:
            raise ConnectionError(f"the link to {self.peer} has ended: {self.why}")
        if not self.asked_for_room() and self._bounds.refuses:
            raise NoRoomError(f"{self._held} bytes wait to be sent to {self.peer}")
        size = sum(map(len, frames))
        self._number += 1
        self._waiting.append(_Sent(self._number, self._end, size, frames))
        self._end += size
        self._held += size
        return self._pump() if self.state is LinkState.UP else []

    def handled(self, size: int) -> list[Action]:
        """That many delivered bytes have been handled."""
        self._handled += size
        if self.state is not LinkState.UP:
            return []
        room = self._handled + self._bounds.window - self._told_limit
        return [self._ack()] if 2 * room >= self._bounds.window else []

    def received(
        self, message: AnyLinkMessage, frames: Sequence[Buffer], now: float
    ) -> list[Action]:
        """A message came from a node with the name of the other end."""
        if isinstance(message, LinkHello):
            return self._greeted(message, now)
        if self.is_final and not isinstance(message, (Bye, LinkRefused)):
            # One of the two ends may not know that the session is over.
            return [Transmit(Bye(message.session, self.state is not LinkState.LEFT, self.why))]
        # A node that refuses this name sends no hello, so its incarnation is unknown here.
        unmet = isinstance(message, LinkRefused) and not self.peer_incarnation
        if message.session != (self.incarnation if unmet else self.session) or not (
            unmet or self.peer_incarnation
        ):
            return []  # of another incarnation
        if isinstance(message, Bye):
            return self._bye(message, now)
        if isinstance(message, LinkRefused):
            why = message.why or "the other side refuses, without a reason"
            return [] if self.is_final else self._end_as(LinkState.REFUSED, why, now)
        actions = self._acknowledged(message.received, message.limit, now)
        if self.is_final:
            return actions
        if self._waiting and self.state is LinkState.UP:
            actions += self._pump()
        if isinstance(message, Data):
            actions += self._data(message, frames)
        elif isinstance(message, Ping):
            actions.append(Transmit(Pong(self.session, message.number, *self._credit())))
        elif isinstance(message, Pong):
            actions += self._ponged(message, now)
        return actions

    def close(self, why: str, now: float) -> list[Action]:
        """End the session; unacknowledged messages may not arrive. Idempotent."""
        if self.is_final:
            return []
        goodbye = [Transmit(Bye(self.session, False, why))] if self.peer_incarnation else []
        self._finish(LinkState.LEFT, why, now)
        return [*goodbye]

    # --- time -------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `time_passed` is to be called next: at least every `ping_s`."""
        if self.is_final:
            return None
        deadline = self._looked_at + self._bounds.ping_s
        if self.state is not LinkState.UP:
            for longest in (self._bounds.patience_s, self._bounds.silence_s):
                if longest is not None:
                    deadline = min(deadline, max(self._looked_at, self._down_since + longest))
        if self.state is not LinkState.DOWN:
            deadline = min(deadline, self._next_ping)
        return deadline

    def time_passed(self, now: float) -> list[Action]:
        """Check the time. To be called at least at each deadline."""
        if self.is_final:
            return []
        # If this process was suspended, messages may have been waiting all the while.
        late = now - self._looked_at - 2 * self._bounds.ping_s
        self._looked_at = now
        if late > 0:
            self._down_since = min(now, self._down_since + late)
            self._answered_at = min(now, self._answered_at + late)
        if self.state is LinkState.UP:
            return self._keep_up(now)
        down = now - self._down_since
        if self._patience_is_over(down):
            return self._lose(f"no connection to it for {down:.1f} s", now)
        if self.state is LinkState.GREETING and now >= self._next_ping:
            self._next_ping = now + self._bounds.ping_s
            return [self._hello(answer=True)]
        return []

    def _patience_is_over(self, down: float) -> bool:
        # If the link was up, and is connected but does not greet, its process is alive but busy.
        busy = self._was_up and self.state is LinkState.GREETING
        longest = self._bounds.silence_s if busy else self._bounds.patience_s
        return longest is not None and down >= longest

    def _keep_up(self, now: float) -> list[Action]:
        silence = self._bounds.silence_s
        silent = now - self._answered_at
        if silence is not None and silent >= silence:
            return self._lose(f"it has not answered for {silent:.1f} s", now)
        return self.probe(now) if now >= self._next_ping else []

    def probe(self, now: float) -> list[Action]:
        """Ping the other end now. `round_trip_s` is how long the last answer took."""
        if self.state is not LinkState.UP:
            return []
        self._next_ping = now + self._bounds.ping_s
        self._pings += 1
        flown = self._flying[-1].number if self._flying else self._acked
        self._pinged = (self._pings, flown, now)
        return [Transmit(Ping(self.session, self._pings, *self._credit()))]

    # --- greeting ---------------------------------------------------------------------------------

    def _hello(self, *, answer: bool) -> Transmit:
        received, limit = self._credit()
        return Transmit(
            LinkHello(
                self.node, self.incarnation, self._versions, self.peer_incarnation, received,
                limit, answer,
            )
        )  # fmt: skip

    def _greeted(self, hello: LinkHello, now: float) -> list[Action]:
        life = hello.incarnation
        if hello.node != self.peer or life <= 0 or life < self.peer_incarnation or hello.peer < 0:
            return []  # outdated or invalid
        if self.is_final:
            return self._say_that_it_is_over(hello)
        if self.peer_incarnation and life != self.peer_incarnation:
            return self._lose("it has begun a new incarnation", now)
        actions: list[Action] = [self._hello(answer=False)] if hello.answer else []
        if hello.peer not in (0, self.incarnation):
            return actions  # it knows an earlier incarnation of this end; the answer corrects that
        why = mismatch(self.peer, self._versions, hello.versions)
        if why:
            self.peer_incarnation = life
            refusal = Transmit(LinkRefused(self.session, why))
            return [*actions, refusal, *self._end_as(LinkState.REFUSED, why, now)]
        self.peer_incarnation = life
        acknowledged = self._acknowledged(hello.received, hello.limit, now)
        if self.is_final:
            return actions + acknowledged
        if self.state is LinkState.DOWN:  # the hello came before the connection was reported
            self._move(LinkState.GREETING, now)
        if self.state is LinkState.GREETING:
            self._move(LinkState.UP, now)
            self._answered_at, self._pinged = now, None
            self._next_ping = now + self._bounds.ping_s
            if not self._told_up:
                actions.append(LinkUp(self._was_up))
            self._was_up = self._told_up = True
        return actions + acknowledged + self._again()

    def _say_that_it_is_over(self, hello: LinkHello) -> list[Action]:
        # The peer knows an end of this node that is over, this one or an earlier one. A peer that
        # begins anew is for another end to answer.
        if not hello.peer and hello.incarnation != self.peer_incarnation:
            return []
        session = (hello.peer or self.incarnation) ^ hello.incarnation
        return [Transmit(Bye(session, self.state is not LinkState.LEFT, self.why))]

    def _bye(self, message: Bye, now: float) -> list[Action]:
        self.bye_received = True
        if self.is_final:
            return []
        if message.lost:
            return self._lose(f"it has given up this side: {message.why}", now, tell=False)
        # The leaving side waits for this answer before it closes the connection.
        answer = Transmit(Bye(self.session, False, message.why))
        return [answer, *self._end_as(LinkState.LEFT, message.why, now)]

    # --- out --------------------------------------------------------------------------------------

    def _pump(self) -> list[Action]:
        actions: list[Action] = []
        while self._waiting and self._waiting[0].start < self._limit:
            sent = self._waiting.popleft()
            self._flying.append(sent)
            actions.append(Transmit(Data(self.session, sent.number, *self._credit()), sent.frames))
        return actions

    def _again(self) -> list[Action]:
        """Transmit all unacknowledged messages again."""
        self._waiting.extendleft(reversed(self._flying))
        self._flying.clear()
        return self._pump()

    def _acknowledged(self, received: int, limit: int, now: float) -> list[Action]:
        if received > self._number:
            return self._lose(f"it acknowledged {received} of {self._number} messages", now)
        for queue in (self._flying, self._waiting):
            while queue and queue[0].number <= received:
                self._held -= queue.popleft().size
        self._acked = max(self._acked, received)
        self._limit = max(self._limit, limit)
        actions: list[Action] = []
        if self._refused and 2 * self._held <= self._bounds.queue:
            self._refused = False
            actions.append(Room())
        return actions

    def _ponged(self, pong: Pong, now: float) -> list[Action]:
        if self._pinged is None or pong.number != self._pinged[0]:
            return []
        _, flown, at = self._pinged
        self._pinged = None
        self._answered_at = at
        self.round_trip_s = now - at
        return self._again() if pong.received < flown else []

    # --- in ---------------------------------------------------------------------------------------

    def _data(self, message: Data, frames: Sequence[Buffer]) -> list[Action]:
        if message.number != self._received + 1:
            return []  # a duplicate, or an earlier message is missing
        size = sum(map(len, frames))
        self._received += 1
        self._taken += size
        actions: list[Action] = [Deliver(frames, size)]
        if self.state is LinkState.UP and self._received - self._told_received >= ACK_EVERY:
            actions.append(self._ack())
        return actions

    def _ack(self) -> Transmit:
        return Transmit(Ack(self.session, *self._credit()))

    def _credit(self) -> tuple[int, int]:
        """The fields of every message: the number of the last received one, and the limit."""
        self._told_received = self._received
        self._told_limit = self._handled + self._bounds.window
        return self._told_received, self._told_limit

    # --- ends -------------------------------------------------------------------------------------

    def _lose(self, why: str, now: float, *, tell: bool = True) -> list[Action]:
        unacknowledged = self.unacknowledged
        told = [Transmit(Bye(self.session, True, why))] if tell and self.peer_incarnation else []
        self._finish(LinkState.LOST, why, now)
        return [*told, PeerLost(why, unacknowledged)]

    def _end_as(self, state: LinkState, why: str, now: float) -> list[Action]:
        self._finish(state, why, now)
        return [PeerLeft(why) if state is LinkState.LEFT else PeerRefused(why)]

    def _finish(self, state: LinkState, why: str, now: float) -> None:
        self._move(state, now)
        self.why = why
        self._flying.clear()
        self._waiting.clear()
        self._held = 0

    def _move(self, state: LinkState, now: float) -> None:
        assert state in TRANSITIONS[self.state], f"link to {self.peer}: {self.state} -> {state}"
        self.state = state
        self.is_final = state in FINAL
        self.story.append((now, state))

    def validate(self) -> None:
        """Assert all invariants. For tests."""
        numbers = [sent.number for sent in (*self._flying, *self._waiting)]
        if self.is_final:
            assert self.why or self.state is LinkState.LEFT
            assert not numbers
            assert not self._held
            return
        assert numbers == list(range(self._number - len(numbers) + 1, self._number + 1))
        assert not numbers or numbers[0] == self._acked + 1
        assert self._held == sum(sent.size for sent in (*self._flying, *self._waiting))
        assert all(sent.start < self._limit for sent in self._flying)
        assert self._handled <= self._taken
        assert self._told_limit <= self._handled + self._bounds.window
        assert self._told_received <= self._received
        assert self.state is not LinkState.UP or self.peer_incarnation
        assert not self._pinged or self._pinged[1] <= self._number
