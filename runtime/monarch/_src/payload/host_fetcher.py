"""Fetches large payloads from other hosts, once for all of their receivers on this one.

A payload is requested in pieces over connections between the two gateways (`payload.hosts.client`).
If there is no such connection, or if the sender's gateway cannot open the sender's segments, the
pieces are requested from the sender, over the link that brought the message.
`payload.state.fetches` decides the order of requests and which messages wait. Each piece is written
to its place in a segment as it arrives. Without a segment, the parts are assembled in memory, and
are delivered over the socket.

Runs in: the gateway of a host (the client, or the agent of a worker), on the thread that handles
messages of links. Owns: the segments with fetched payloads, which it lends to processes of this
host; those in the client serve the client itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from monarch._src.net.hosts.gateway import Gateway
from monarch._src.net.node import Node
from monarch._src.payload.cleanup_thread import Tidying
from monarch._src.payload.host_server import send_copied
from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.pieces import FetchesPieces, Outcome, Wanted
from monarch._src.payload.sender import HEADER, InOwnSegment, PayloadSender, ReceiversOf
from monarch._src.payload.state.fetches import Ask, Fetching, Lane
from monarch._src.wire.frames import (
    Buffer,
    FrameError,
    Payload,
    decode,
    encode,
    lent_in,
    with_parts,
)
from monarch._src.wire.ids import AGENT, agent_at
from monarch._src.wire.messages import (
    AskBulk,
    AskPart,
    AskPayload,
    BulkAt,
    Cast,
    CastTree,
    PayloadPart,
    PayloadSent,
    PayloadTaken,
)
from monarch._src.wire.segment_refs import InSegment

log = logging.getLogger("monarch.payload")
# These messages are about payloads, and wait for none.
_AT_ONCE = (AskBulk, AskPart, AskPayload, BulkAt, PayloadPart, PayloadSent, PayloadTaken)


class _InMemory:
    """The place of a payload for which there is no segment."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.parts = [bytearray(size) for size in sizes]

    def put(self, part: int, at: int, data: Buffer) -> None:
        self.parts[part][at : at + len(data)] = data

    def room(self, part: int, at: int, size: int) -> memoryview:
        return memoryview(self.parts[part])[at : at + size]

    write = put

    def is_filled(self) -> None:
        pass


class _Pending(msgspec.Struct, eq=False):
    """A message that waits for its payload or for its turn.

    lent: the sender's segment with the payload. here: the place of the payload on this host.
    why: the reason why pieces are fetched over the link; empty if they are not.
    bulk: bytes that were fetched beside the link.
    """

    lane: Lane
    frames: Sequence[Buffer]
    lent: InSegment | None = None
    here: InOwnSegment | _InMemory | None = None
    why: str = ""
    bulk: int = 0


class Segments:
    """Segments of a gateway that sends no payloads of its own, an agent.

    They are made when first needed. A thread tidies them while there are any.
    """

    def __init__(self, receivers_of: ReceiversOf) -> None:
        self._receivers_of = receivers_of
        self._lender: PayloadSender | None = None
        self._tidying: Tidying | None = None

    def to_lend(self) -> PayloadSender:
        """The sender of these segments; starts the thread that tidies them."""
        if self._lender is None:
            self._lender = PayloadSender(self._receivers_of)
            self._tidying = Tidying((self._lender.tidy,))
        assert self._tidying is not None
        self._tidying.want()
        return self._lender

    def on_node_gone(self, node: str) -> None:
        """That node has ended: it returns no loans."""
        if self._lender is not None:
            self._lender.node_gone(node)

    def taken(self, message: PayloadTaken) -> None:
        """Another host has received the payload."""
        if self._lender is not None:
            self._lender.taken(message)

    def served(self) -> OutgoingPayloads | None:
        """The payloads that this process itself serves. Any thread."""
        return None if self._lender is None else self._lender.served

    def close(self) -> None:
        """Free them."""
        if self._lender is not None and self._tidying is not None:
            self._tidying.close()
            self._lender.close()


class Fetcher:
    """Fetches payloads for this host; see the module's docstring."""

    def __init__(
        self, node: Node, gateway: Gateway, to_lend: Callable[[], PayloadSender],
        bulk: FetchesPieces,
        watch: Callable[[str, str], None] = lambda _site, _sender: None,
    ) -> None:  # fmt: skip
        """Args:
        to_lend: returns the segments of this process, and has them tidied.
        bulk: the connections beside links.
        watch: called with a site and a node there, so that `on_sender_ended` is called when that
            node ends.
        """
        self._node = node
        self._gateway = gateway
        self._to_lend = to_lend
        self._watch = watch
        self._fetching: Fetching[_Pending] = Fetching()
        self._coming: dict[int, _Pending] = {}  # payloads that are being fetched
        self._numbers: dict[tuple[str, int, int], int] = {}  # by sender, its key and its number
        self._watched: set[tuple[str, str]] = set()
        self._by_link: dict[tuple[str, str], str] = {}  # senders that need the link: the reason
        self._bulk = bulk
        bulk.done = self._on_piece
        self._unable: set[str] = set()  # nodes of this host that cannot map segments of this one
        self.fetched_bytes = 0
        gateway.passes = self._passes

    # --- messages of links ------------------------------------------------------------------------

    def _passes(self, sender: str, origin: str, to: str, frames: Sequence[Buffer]) -> bool:
        """See `Gateway.passes`."""
        lane = origin, sender, to
        lent = lent_in(frames)
        if lent is None:
            if self._fetching.passes(lane) or self._is_at_once(to, frames):
                return True
            self._fetching.message_came(lane, _Pending(lane, frames))
            return False
        if not lent.is_sound(HEADER):
            raise FrameError(f"{sender} of {origin} has sent an invalid segment reference")
        self._want(_Pending(lane, frames, lent), lent)
        return False

    def _is_at_once(self, to: str, frames: Sequence[Buffer]) -> bool:
        # Other nodes need no check: no payload comes on the lanes from a gateway to them.
        return to == self._node.name and isinstance(decode(frames)[0], _AT_ONCE)

    def _want(self, coming: _Pending, lent: InSegment) -> None:
        lane = coming.lane
        sizes = [size for _, size in lent.spans]
        coming.here = self._to_lend().reserve(
            sizes, body=lent.body, readonly=lent.readonly, sole=lent.sole
        ) or _InMemory(sizes)
        coming.why = self._by_link.get(lane[:2]) or self._bulk.why_not(lane[0])
        by_link = bool(coming.why)
        number, asks = self._fetching.wanted(lane, coming, sizes, by_link=by_link)
        self._coming[number] = coming
        self._numbers[_named(lane), lent.key, lent.word] = number
        if lane[:2] not in self._watched:
            self._watched.add(lane[:2])
            self._watch(*lane[:2])
        self._ask(asks)

    def _ask(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            coming = self._coming.get(ask.fetch)
            if coming is None or coming.lent is None or coming.here is None:
                continue  # an earlier request of this batch failed: its sender is out of reach
            lent = coming.lent
            if not coming.why:
                wanted = Wanted(ask.fetch, ask.part, ask.at, ask.size, lent, coming.here)
                self._bulk.ask(coming.lane[0], wanted)
                continue
            by_link = AskPart(lent.number, lent.key, lent.word, ask.part, ask.at, ask.size)
            if not self._say(coming.lane, by_link):
                self._drop([ask.fetch])

    def _say(self, lane: Lane, message: AskPart | PayloadTaken) -> bool:
        """Send a message to the sender of a payload; False if it is out of reach."""
        (site, sender, _), own = lane, self._node
        return self._gateway.pass_on(own.name, own.site, sender, site, encode(message))

    def on_part(self, peer: str, message: PayloadPart, payload: Payload) -> None:
        """A piece of a payload came over the link."""
        number = self._numbers.get((peer, message.key, message.word))
        if number is None:
            return  # the payload is no longer wanted
        coming = self._coming[number]
        assert coming.here is not None
        if not payload.buffers:
            log.debug("a payload of %s is gone", peer)
            self._drop([number])
            return
        (piece,) = cast("tuple[Buffer]", tuple(payload.buffers))
        try:
            coming.here.put(message.part, message.at, piece)
            self._on_stored(number, message.part, message.at, len(piece))
        except (OSError, ValueError) as error:
            log.warning("a payload of %s is lost on its way: %s", peer, error)
            self._drop([number])

    def _on_piece(self, wanted: Wanted, outcome: Outcome, why: str) -> None:
        """A request beside the link has ended."""
        coming = self._coming.get(wanted.fetch)
        if coming is None:
            return  # the payload is no longer wanted
        if outcome is Outcome.HERE:
            coming.bulk += wanted.size
            self._on_stored(wanted.fetch, wanted.part, wanted.at, wanted.size)
        elif outcome is Outcome.NO_MEMORY:
            log.warning("a payload of %s is lost on its way: %s", coming.lane[1], why)
            self._drop([wanted.fetch])
        else:
            if outcome is Outcome.UNREADABLE:
                self._by_link[coming.lane[:2]] = why
            # The sender knows whether it still has the payload.
            coming.why = why or "its segment has another message"
            self._ask(self._fetching.goes_by_link(wanted.fetch, wanted.part, wanted.at))

    def _on_stored(self, number: int, part: int, at: int, size: int) -> None:
        """A piece is in its place. Raises ValueError if it was not requested."""
        asks, is_here = self._fetching.piece_came(number, part, at, size)
        self.fetched_bytes += size
        self._ask(asks)
        if is_here:
            self._finish(number)

    # --- complete payloads ------------------------------------------------------------------------

    def _finish(self, number: int) -> None:
        """All of a payload is here: acknowledge it, and deliver the messages that may go now."""
        here = self._coming[number].here
        assert here is not None
        here.is_filled()
        lane = self._forget(number)
        if lane is not None:
            self._release(lane)

    def _drop(self, numbers: Sequence[int]) -> None:
        """These payloads are lost."""
        for number in numbers:
            asks = self._fetching.is_lost(number)
            lane = self._forget(number)
            if lane is not None:
                log.warning("a message of %s to %s is lost: its payload is gone", *lane[1:])
                self._release(lane)
                self._ask(asks)

    def _forget(self, number: int) -> Lane | None:
        coming = self._coming.pop(number, None)
        if coming is None or coming.lent is None:
            return None
        lent = coming.lent
        del self._numbers[_named(coming.lane), lent.key, lent.word]
        taken = PayloadTaken(lent.number, lent.key, lent.word, coming.bulk, coming.why)
        self._say(coming.lane, taken)
        return coming.lane

    def _release(self, lane: Lane) -> None:
        for coming in self._fetching.released(lane):
            try:
                self._hand_in(coming)
            except Exception:  # the next message is delivered all the same
                log.exception("delivering a message of %s failed", lane[1])

    def _hand_in(self, coming: _Pending) -> None:
        site, sender, to = coming.lane
        here, frames = coming.here, coming.frames
        if isinstance(here, InOwnSegment):
            if to == self._node.name:
                message, payload = decode([bytes(frames[0])])
                # The node passes it on to those of its receivers that are alive.
                if isinstance(message, (Cast, CastTree)):
                    whole = Payload(payload.body, (here,))
                    self._node.deliver_remote(sender, site, message, whole)
                    return
            lent = None if to in self._unable else here.lend_to(to)
            frames = with_parts(frames, here.parts() if lent is None else lent)
            self._to_lend()
        elif here is not None:
            frames = with_parts(frames, here.parts)
        self._gateway.hand_in(sender, site, to, list(frames))

    def on_ask(self, peer: str, message: AskPayload, _payload: Payload) -> None:
        """A process of this host cannot map a segment that was lent to it."""
        if message.lasting:
            self._unable.add(peer)
        send_copied(self._node, self._to_lend(), peer, message)

    # --- ends of nodes and links ------------------------------------------------------------------

    def on_node_forgotten(self, node: str) -> None:
        """That node of this host has ended."""
        self._unable.discard(node)

    def on_sender_ended(self, site: str, sender: str | None = None) -> None:
        """That node has ended; without `sender`, the link to its site has."""
        self._watched = {
            one for one in self._watched if one[0] != site or sender not in (None, one[1])
        }
        for one in [one for one in self._by_link if one[0] == site and sender in (None, one[1])]:
            del self._by_link[one]
        if sender is None:
            self._bulk.forget_site(site)
        for number in self._fetching.sender_ended(site, sender):
            self._drop([number])


def _named(lane: Lane) -> str:
    """The name of the sender on this host."""
    site, sender, _ = lane
    return agent_at(site) if sender == AGENT else sender
