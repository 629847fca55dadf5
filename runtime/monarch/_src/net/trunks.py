"""Trunks: sealed TCP connections that carry what links say, once ZeroMQ has brought two together.

Runs in: any process that has links, under their lock. Owns: a listener, the trunks of all ends, and
those who have connected and not said yet whose they are.

A link begins by ZeroMQ with CURVE, which finds out who the other side is. Then who listens offers a
*trunk*: a port of its own, and new keys, said over the encrypted connection. Who has dialled
connects there, and says something that only who has the keys can say.

    listens                             dials
    TrunkOffer  ---- by ZeroMQ ---->    connects; knocks with what the key has sealed
    TrunkBegins ---- by ZeroMQ ---->    the last that comes by ZeroMQ; reads the trunk from now on
    reads the trunk from now on         <---- by ZeroMQ ---- TrunkBegins

Each side says by the trunk all that it says after its own TrunkBegins, and reads it only after the
other's. So nothing overtakes, and a network in which the port cannot be reached, or something
swallows what goes there, costs nothing but the gain: a trunk takes a thread less on each side and
each way than ZeroMQ does, and encrypts several times as fast.

Invariants: a trunk never outlives the connection that it belongs to. If either breaks, both ends
greet each other anew by ZeroMQ, send again what was not acknowledged, and another trunk is offered,
unless too many have ended of late: then after a pause. An offer that nobody takes has ended too.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from monarch._src.core.links import LinkState
from monarch._src.net.audit import Audit
from monarch._src.net.link_end import End
from monarch._src.net.link_poll import LinkPoll
from monarch._src.net.listening import listener_at
from monarch._src.net.polling import READ, WRITE
from monarch._src.net.trunk import (
    KNOCK_BYTES,
    Trunk,
    check_knock,
    knock,
    new_socket,
    number_of,
    prepare,
)
from monarch._src.wire.frames import Buffer
from monarch._src.wire.linking import AnyTrunkMessage, TrunkBegins, TrunkOffer
from monarch._src.wire.sealed import KEY_BYTES, Sealer, SealError, Unsealer
from monarch._src.wire.stream import StreamError

log = logging.getLogger("monarch.net")
BACKLOG = 128
KNOCKERS = 64  # who may be connected and not have knocked
KNOCK_S = 5.0  # how long they may take
OFFER_S = 10.0  # how long an offer is good for
LEAVE_S = 2.0  # what was said last may take so long to leave
ENDED_S = 60.0  # what is too soon for a trunk to end; see `core.trunk_tries`


class _Side(msgspec.Struct, eq=False):
    """One end's side of a trunk that was offered. `made`: its connection, once there is one."""

    end: End
    number: int
    session: int
    sealer: Sealer
    unsealer: Unsealer
    since: float
    made: socket.socket | None = None
    is_connecting: bool = False
    trunk: Trunk | None = None


class _Knocker(msgspec.Struct, eq=False):
    made: socket.socket
    address: str
    since: float
    said: bytes = b""


class Trunks:
    """See the module's text. Not thread-safe."""

    def __init__(
        self,
        poll: LinkPoll,
        audit: Audit,
        silence_s: float,
        takes: bool,
        say: Callable[[End, AnyTrunkMessage], None],
        arrived: Callable[[End, list[Buffer]], None],
        broke: Callable[[End], None],
        place: Callable[[End, Sequence[Buffer], int], memoryview | None],
    ) -> None:
        """Args:
        silence_s: after how long without any acknowledgement a trunk is given up.
        takes: whether to take what is offered.
        say: sends by ZeroMQ. arrived: takes a message of a trunk.
        broke: the trunk by which an end sends has ended; it is to be dropped.
        place: where a large frame of a message is to be put, by those before it; None: anywhere.
        """
        self._poll = poll
        self._audit = audit
        self._silence_s = silence_s
        self._takes = takes
        self._say = say
        self._arrived = arrived
        self._broke = broke
        self._place = place
        self._listener: socket.socket | None = None
        self._is_deaf = False
        self._sides: dict[End, _Side] = {}
        self._offers: dict[int, _Side] = {}  # those that nobody has taken yet
        self._knockers: dict[int, _Knocker] = {}
        self._leaving: dict[Trunk, float] = {}  # of sessions that are over: until when
        self._paused: set[End] = set()  # those that are to be offered one when their pause is over

    def listen(self, host: str) -> None:
        """Accept trunks at that address, at a port of their own; offer none if it has none left."""
        try:
            self._listener = listener_at(host, BACKLOG)
        except OSError as error:
            log.warning("no trunks are offered, links stay with ZeroMQ: %s", error)
            return
        self._listener.setblocking(False)
        self._poll.add_fd(self._listener.fileno(), self._accept)

    # --- beginning --------------------------------------------------------------------------------

    def offer(self, end: End, why_paused: str = "") -> None:
        """The node that has dialled that end has said hello: offer it a trunk, if there may be."""
        if self._listener is None:
            return
        now = time.monotonic()
        if end.trunk_tries.waits_until(now) is not None:
            end.no_trunk = why_paused or f"{end.trunk_tries.count} have ended of late"
            self._paused.add(end)
            return
        keys = os.urandom(2 * KEY_BYTES)
        number = int.from_bytes(os.urandom(8), "big")
        own, other = Sealer(keys[:KEY_BYTES]), Unsealer(keys[KEY_BYTES:])
        side = self._sides[end] = _Side(end, number, end.link.session, own, other, now)
        self._offers[number] = side
        port = self._listener.getsockname()[1]
        end.no_trunk = "nobody has taken the offer yet"
        self._say(end, TrunkOffer(side.session, number, port, keys))

    def said(self, end: End, message: AnyTrunkMessage, part: Any) -> None:
        """The other side has said something about trunks; `part`: a frame of it, of ZeroMQ."""
        if message.session != end.link.session:
            return  # of another life
        if isinstance(message, TrunkOffer):
            if end.socket is None or not self._takes or len(message.keys) != 2 * KEY_BYTES:
                return  # who has dialled us offers nothing
            if end.trunk is not None:  # the other side has none any more
                self._broke(end)
            elif not end.is_direct:
                end.no_trunk = "the link goes by way of a gateway"
            else:
                self.drop(end)
                self._dial(end, message, part.get("Peer-Address"))
            return
        side = self._sides.get(end)
        if side is None or side.number != message.number or side.made is None:
            return
        if side.trunk is None:  # we have dialled, and it has heard us
            if side.is_connecting:
                return
            side.trunk = self._trunk(side, side.made)
            self._read(side)
            self._use(side)
        elif not side.trunk.reads:
            self._read(side)

    def _trunk(self, side: _Side, made: socket.socket) -> Trunk:
        return Trunk(made, side.sealer, side.unsealer, partial(self._place, side.end))

    def _use(self, side: _Side) -> None:
        """Say by the trunk what is said from now on."""
        self._say(side.end, TrunkBegins(side.session, side.number))
        if self._sides.get(side.end) is side:  # it may have found that there is no connection
            side.end.trunk, side.end.no_trunk = side.trunk, ""

    def _read(self, side: _Side) -> None:
        assert side.trunk is not None
        side.trunk.reads = True
        self._watch(side.end, side.trunk)

    def _dial(self, end: End, offer: TrunkOffer, host: str) -> None:
        other, own = Unsealer(offer.keys[:KEY_BYTES]), Sealer(offer.keys[KEY_BYTES:])
        side = _Side(end, offer.number, offer.session, own, other, time.monotonic())
        try:
            found = socket.getaddrinfo(
                host, offer.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
            family, _, _, _, address = found[0]
            side.made = new_socket(family, self._silence_s)
            begun = side.made.connect_ex(address)
            if begun not in (0, errno.EINPROGRESS):
                raise OSError(begun, os.strerror(begun))
        except OSError as error:
            self._failed(side, host, offer.port, error.strerror or str(error))
            return
        self._sides[end] = side
        side.is_connecting = True
        end.no_trunk = f"no answer from {_shown(host, offer.port)} yet"
        ready = partial(self._connected, side, host, offer.port)
        self._poll.add_fd(side.made.fileno(), ready, WRITE)

    def _connected(self, side: _Side, host: str, port: int) -> bool:
        assert side.made is not None
        self._poll.remove_fd(side.made.fileno())
        side.is_connecting = False
        failed = side.made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not failed:
            try:
                side.made.send(knock(side.number, side.sealer))
            except OSError as error:
                failed = error.errno or 0
        if failed:
            self._failed(side, host, port, os.strerror(failed))
        return False

    def _failed(self, side: _Side, host: str, port: int, why: str) -> None:
        side.end.no_trunk = f"cannot connect to {_shown(host, port)}: {why}"
        log.info("the link to %s stays with ZeroMQ: %s", side.end.link.peer, side.end.no_trunk)
        if self._sides.get(side.end) is side:
            del self._sides[side.end]
        if side.made is not None:
            side.made.close()

    # --- who connects -----------------------------------------------------------------------------

    def _accept(self) -> bool:
        assert self._listener is not None
        for _ in range(KNOCKERS):
            try:
                made, address = self._listener.accept()
            except BlockingIOError:
                return False
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptors: links stay with ZeroMQ until there are some
                log.warning("cannot accept a trunk now: %s", error.strerror)
                self._poll.remove_fd(self._listener.fileno())
                self._is_deaf = True
                return False
            made.setblocking(False)
            if len(self._knockers) >= KNOCKERS:
                self._turn_away(min(self._knockers.values(), key=lambda one: one.since), "")
            where = str(address[0]).removeprefix("::ffff:")
            self._knockers[made.fileno()] = _Knocker(made, where, time.monotonic())
            self._poll.add_fd(made.fileno(), partial(self._heard, made.fileno()))
        return True  # but others have their turn

    def _heard(self, fd: int) -> bool:
        one = self._knockers[fd]
        try:
            said = one.made.recv(KNOCK_BYTES - len(one.said))
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        one.said += said
        if not said:
            self._turn_away(one, "it left before it had knocked")
        elif len(one.said) == KNOCK_BYTES:
            self._knocked(one)
        return False

    def _knocked(self, one: _Knocker) -> None:
        side = self._offers.get(number_of(one.said))
        try:
            if side is None:
                raise SealError("it takes no offer of a trunk")
            check_knock(one.said, side.unsealer)
        except SealError as error:
            if side is not None:  # what it would have sealed next opens no more
                self.drop(side.end)
            self._turn_away(one, str(error))
            return
        try:
            prepare(one.made, self._silence_s)
        except OSError:  # it has ended
            self._turn_away(one, "it left when it had knocked")
            return
        del self._offers[side.number]
        self._poll.remove_fd(one.made.fileno())
        del self._knockers[one.made.fileno()]
        side.made = one.made
        side.trunk = self._trunk(side, one.made)
        self._use(side)

    def _turn_away(self, one: _Knocker, why: str) -> None:
        fd = one.made.fileno()
        self._audit.note("refused", why=why or "too many connect", address=one.address)
        self._poll.remove_fd(fd)
        del self._knockers[fd]
        one.made.close()

    # --- what passes ------------------------------------------------------------------------------

    def send(self, end: End, trunk: Trunk, frames: Sequence[Buffer]) -> bool:
        """Send by the trunk of that end, without blocking; False if it has ended."""
        sent = trunk.send(frames)
        if trunk.waits:
            self._watch(end, trunk)
        return sent

    def _watch(self, end: End, trunk: Trunk) -> None:
        """Look for what there is to be done."""
        mask = (READ if trunk.reads else 0) | (WRITE if trunk.waits else 0)
        if mask == trunk.mask or trunk.fd < 0:
            return
        if not trunk.mask:
            self._poll.add_fd(trunk.fd, partial(self._ready, end, trunk), mask)
        elif not mask:
            self._poll.remove_fd(trunk.fd)
        else:
            self._poll.modify_fd(trunk.fd, mask)
        trunk.mask = mask

    def _ready(self, end: End, trunk: Trunk) -> bool:
        if trunk.mask & WRITE:
            if not trunk.flush():
                return self._ended(end, trunk)
            if trunk in self._leaving and not trunk.waits:
                trunk.end_sending()
            self._watch(end, trunk)
        if not trunk.reads:
            return False
        try:
            came = trunk.receive()
        except (SealError, StreamError) as error:
            self._audit.note("refused", why=str(error), node=end.link.peer, key=end.mark)
            came = None
        if came is None:
            return self._ended(end, trunk)
        messages, more = came
        for message in messages:
            self._arrived(end, message)
            if trunk.fd < 0:
                return False
        return more

    def _ended(self, end: End, trunk: Trunk) -> bool:
        if trunk in self._leaving:
            self._close(trunk)
        else:
            self._broke(end)
        return False

    # --- ends -------------------------------------------------------------------------------------

    def drop(self, end: End) -> bool:
        """Whatever there is of a trunk of that end is over; whether anything was said by it."""
        side = self._sides.pop(end, None)
        if side is None:
            return False
        self._offers.pop(side.number, None)
        end.trunk = None
        if side.trunk is not None:
            end.no_trunk = "it has ended"
            if side.trunk.reads:
                end.trunk_tries.ended(time.monotonic(), ENDED_S)
            self._close(side.trunk)
        elif side.made is not None:
            if side.is_connecting:
                self._poll.remove_fd(side.made.fileno())
            side.made.close()
        return side.trunk is not None

    def leave(self, end: End) -> None:
        """The session of that end is over: close its trunk when its last word has left."""
        trunk = end.trunk
        if trunk is None or not trunk.reads:
            self.drop(end)
            return
        self._offers.pop(self._sides.pop(end).number, None)
        end.trunk = None
        self._leaving[trunk] = time.monotonic() + LEAVE_S
        if not trunk.waits:
            trunk.end_sending()

    def leave_ended(self) -> None:
        """The same for all whose session is."""
        for end in [end for end in self._sides if end.link.is_final]:
            self.leave(end)

    def _close(self, trunk: Trunk) -> None:
        self._leaving.pop(trunk, None)
        if trunk.mask:
            self._poll.remove_fd(trunk.fd)
            trunk.mask = 0
        trunk.close()

    def time_passed(self, now: float) -> None:
        """Look at the time."""
        self.leave_ended()  # also those in whose place there are others by now
        for one in [one for one in self._knockers.values() if now - one.since > KNOCK_S]:
            self._turn_away(one, "it did not knock")
        for trunk in [trunk for trunk, until in self._leaving.items() if now >= until]:
            self._close(trunk)
        for side in [side for side in self._offers.values() if now - side.since > OFFER_S]:
            # Nothing leads there, or what led there broke before anybody used it.
            self.drop(side.end)
            side.end.trunk_tries.ended(now, ENDED_S)
            self.offer(side.end, "nobody has taken what was offered")
        for end in [one for one in self._paused if one.trunk_tries.waits_until(now) is None]:
            self._paused.discard(end)
            if end.link.state is LinkState.UP and end not in self._sides:  # or with its next hello
                self.offer(end)
        if self._is_deaf and self._listener is not None:
            self._is_deaf = False
            self._poll.add_fd(self._listener.fileno(), self._accept)

    def forked(self) -> None:
        """This is a fork: give its copies of the connections back, and seal nothing any more.

        What waits for them is its parent's too, and stays as it is.
        """
        for side in self._sides.values():
            side.end.trunk = None
            if side.made is not None:
                side.made.close()
        self._sides.clear()
        self._paused.clear()

    def close(self) -> None:
        """Give everything back."""
        for end in list(self._sides):
            self.drop(end)
        for trunk in list(self._leaving):
            self._close(trunk)
        self._paused.clear()
        for one in list(self._knockers.values()):
            self._poll.remove_fd(one.made.fileno())
            one.made.close()
        self._knockers.clear()
        if self._listener is not None:
            if not self._is_deaf:
                self._poll.remove_fd(self._listener.fileno())
            self._listener.close()
            self._listener = None


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
