"""Large payloads, which travel in shared-memory segments beside their messages.

Runs in: a client and every proc. The calling thread places a payload in a segment; the receiving
thread of the other process maps it.
Owns: the PayloadSender and the PayloadReceiver, loaded with the first large payload.
Invariants: messages of one sender keep their order. A process that cannot map a segment (another
PID namespace, no mapping left) requests the bytes from the sender, and later messages of that
sender wait until they arrive.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from monarch._src.actor.refs import Known
from monarch._src.net.node import Node
from monarch._src.net.session_directory import site_and_pipe
from monarch._src.shape import NDSlice
from monarch._src.wire.frames import Payload, apart_of
from monarch._src.wire.messages import (
    AnyMessage,
    AskBulk,
    AskPart,
    AskPayload,
    BulkAt,
    Cast,
    CastTree,
    Message,
    PayloadPart,
    PayloadSent,
    PayloadTaken,
)
from monarch._src.wire.segment_refs import InSegment

if TYPE_CHECKING:
    from monarch._src.payload.cleanup_thread import Tidying
    from monarch._src.payload.outgoing import OutgoingPayloads
    from monarch._src.payload.receiver import PayloadReceiver
    from monarch._src.payload.sender import PayloadSender

log = logging.getLogger("monarch.actor")
POLL_S = 0.001  # between two checks, at the end, whether receivers have taken all segments
_Item: TypeAlias = "tuple[str, AnyMessage, Payload]"
# Messages about payloads never wait, since two processes may request from each other.
_AT_ONCE = (AskBulk, AskPart, AskPayload, BulkAt, PayloadPart, PayloadSent, PayloadTaken)
Deliver = Callable[[str, AnyMessage, Payload], None]


class PayloadCounts(msgspec.Struct, frozen=True):
    """Counts of this process's large payloads.

    placed, placed_bytes: payloads that were placed in segments, and their size.
    made, reused: how many new segments these took, and how often a segment was reused.
    received: payloads that arrived in segments.
    served_bytes: bytes that other hosts have fetched, each host once for all of its ranks.
    bulk_bytes: the part of these that went by connections beside the links.
    carried: payloads that went over the socket or the link instead, by reason.
    segments, pooled_bytes: this process's segments, and the memory that is free for reuse.
    """

    placed: int
    placed_bytes: int
    made: int
    reused: int
    received: int
    served_bytes: int
    carried: dict[str, int]
    segments: int
    pooled_bytes: int
    bulk_bytes: int = 0


# The counts of a process that has sent and received no large payload.
NO_COUNTS = PayloadCounts(0, 0, 0, 0, 0, 0, {}, 0, 0)


class _HeldMessages:
    """Messages of one sender, in order, that wait for the payload of the first."""

    def __init__(self, first: _Item, lent: InSegment, word: int) -> None:
        self.items: deque[_Item] = deque([first])
        self.lent = lent
        self.word = word


class Payloads:
    """Places outgoing payloads, and maps incoming ones."""

    def __init__(self, node: Node, known: Known) -> None:
        self._node = node
        self._known = known
        self._rank = -1
        # Opens a route to a node at an address.
        self.reach: Callable[[str, str], None] = node.link
        self._making = threading.Lock()
        self._sender: PayloadSender | None = None
        self._receiver: PayloadReceiver | None = None
        self._tidying: Tidying | None = None
        self._closed = False
        self._cannot_map: set[str] = set()  # nodes that cannot map this process's segments
        self.held: dict[str, _HeldMessages] = {}  # by sender
        self.on_gone: list[Callable[[str], None]] = []  # called with nodes that are gone
        node.on_forget, node.on_alias = self._on_node_gone, self._on_node_renamed

    def begin(self, rank: int) -> None:
        """Set this process's rank; -1: a client."""
        self._rank = rank
        if not _alive:
            os.register_at_fork(after_in_child=_forked)
        _alive.append(weakref.ref(self))

    # --- sending ----------------------------------------------------------------------------------

    def place(self, payload: Payload, *, sole: bool, far: bool = False) -> Payload:
        """The payload, ready to be sent: its large parts in a segment, or copied if they are loose.

        sole: the payload is sent once, to one process. far: it goes to other hosts only, so parts
        that are not loose are served from where they are, if this process serves other hosts
        itself. Called on the sending thread.
        """
        if apart_of(payload) is not None:
            return payload
        if self._closed or not payload.is_large:
            return payload.settled()
        if far and not payload.loose and self._node.remote_links is not None:
            from monarch._src.payload.unmapped import in_place  # loads ctypes, which is slow

            return in_place(self.payload_sender().served, payload, sole=sole)
        placed = self.payload_sender().place(payload, sole=sole)
        if placed is None:
            return payload.settled()
        assert self._tidying is not None
        self._tidying.want()
        return placed

    def payload_sender(self) -> PayloadSender:
        """The segments of this process; the first call starts their clean-up."""
        segments = self._sender
        if segments is None:
            segments = self._load()[0]
        assert self._tidying is not None
        self._tidying.want()
        return segments

    def served(self) -> OutgoingPayloads | None:
        """The payloads that this process keeps for other hosts, if any. Any thread."""
        return None if self._sender is None else self._sender.served

    def payload_receiver(self) -> PayloadReceiver:
        mappings = self._receiver
        return self._load()[1] if mappings is None else mappings

    def _load(self) -> tuple[PayloadSender, PayloadReceiver]:
        from monarch._src.payload.cleanup_thread import Tidying
        from monarch._src.payload.receiver import PayloadReceiver  # loads ctypes, which is slow
        from monarch._src.payload.sender import PayloadSender

        with self._making:
            if self._sender is None or self._receiver is None:
                segments, mappings = PayloadSender(self._receivers_of), PayloadReceiver()
                rooms, served = self._node.send_limits, segments.served
                served.on_removed, rooms.waits = rooms.released, served.waits
                self._tidying = Tidying((segments.tidy, mappings.tidy))
                self._sender, self._receiver = segments, mappings
            return self._sender, self._receiver

    def _receivers_of(self, node: str, message: Message) -> Sequence[str] | None:
        if isinstance(message, CastTree):  # for this host; segments are not lent to others
            message = message.cast
        if not isinstance(message, Cast):
            return None if node in self._cannot_map else (node,)
        # A rank that dies from here on is handled once it is in the lease table.
        offset, sizes, strides = message.region
        mesh, lives = message.mesh, dict(message.lives)
        ref, dead = self._known.ref(mesh), self._known.dead(mesh)
        here = range(0) if ref is None else ref.ranks_of(self._node.site)
        ranks = NDSlice(offset=offset, sizes=sizes, strides=strides).ranks()
        return [
            "" if ref is None or rank not in here or rank in dead
            else ref.node(rank, lives.get(rank, 0))
            for rank in ranks
        ]  # fmt: skip

    def _on_node_gone(self, node: str) -> None:
        """A node is gone."""
        self._cannot_map.discard(node)
        self.held.pop(node, None)
        if self._sender is not None:
            self._sender.node_gone(node)
        for tell in list(self.on_gone):
            tell(node)

    def _on_node_renamed(self, old: str, new: str) -> None:
        if self._sender is not None:
            self._sender.renamed(old, new)

    # --- receiving --------------------------------------------------------------------------------

    def on_message(
        self, peer: str, message: AnyMessage, payload: Payload, deliver: Deliver
    ) -> bool:
        """Whether a message can be handled now, with its payload.

        If not, `deliver` gets it later.
        """
        sender = message.sender if isinstance(message, Cast) else peer
        held = self.held.get(sender)
        if held is not None and not isinstance(message, _AT_ONCE):
            held.items.append((peer, message, payload))
            return False
        lent = apart_of(payload)
        return not isinstance(lent, InSegment) or self._map_payload(
            sender, peer, message, payload, lent
        )

    def _map_payload(
        self, sender: str, peer: str, message: AnyMessage, payload: Payload, lent: InSegment
    ) -> bool:
        position = 0
        if isinstance(message, Cast):
            offset, sizes, strides = message.region
            position = NDSlice(offset=offset, sizes=sizes, strides=strides).index(self._rank)
        try:
            payload.buffers = (self.payload_receiver().borrow(lent, position),)
        except OSError as error:
            word = lent.word + position
            log.debug("a payload of %s is asked for: %s", sender, error)
            self.held[sender] = _HeldMessages((peer, message, payload), lent, word)
            request = AskPayload(lent, word, bool(getattr(error, "lasting", False)))
            self._node.send(self._owner_of_segment(sender, message), request)
            return False
        assert self._tidying is not None
        self._tidying.want()
        return True

    def _owner_of_segment(self, sender: str, message: AnyMessage) -> str:
        """The node that lends the segment of a payload."""
        is_cast = isinstance(message, Cast)
        site = site_and_pipe(message.address)[0] if is_cast else self._node.site_of(sender)
        if site != self._node.site:  # the gateway has fetched it into a segment here
            return self._node.gateway or self._node.name
        if is_cast and not self._node.knows(sender):
            self.reach(sender, message.address)
        return sender

    def on_payload_request(self, peer: str, message: AskPayload, _payload: Payload) -> None:
        """A receiver cannot map a segment, and requests the bytes."""
        if message.lasting:
            self._cannot_map.add(peer)
        from monarch._src.payload.host_server import send_copied

        send_copied(self._node, self._sender, peer, message)

    def on_part_request(self, peer: str, message: AskPart, _payload: Payload) -> None:
        """The gateway of another host fetches a part of a payload."""
        from monarch._src.payload.host_server import send_piece

        send_piece(self._node, self.payload_sender().served, peer, message)

    def on_payload_fetched(self, _peer: str, message: PayloadTaken, _payload: Payload) -> None:
        """The gateway of another host has fetched a payload."""
        if self._sender is not None:
            self._sender.taken(message)

    def on_sent(self, _peer: str, message: PayloadSent, parts: Payload, deliver: Deliver) -> None:
        """The bytes of a requested payload have arrived."""
        named = message.number, message.key, message.word
        for sender, held in self.held.items():
            lent = held.lent
            if named == (lent.number, lent.key, held.word):
                self._on_parts(sender, held, parts, deliver)
                return

    def _on_parts(self, sender: str, held: _HeldMessages, parts: Payload, deliver: Deliver) -> None:
        lent = held.lent
        del self.held[sender]
        peer, first, payload = held.items.popleft()
        if parts.buffers or parts.body:
            if lent.body:
                payload.body = parts.body
            payload.buffers = parts.buffers
            deliver(peer, first, payload)
        else:
            log.warning("a %s of %s is lost: its payload is gone", type(first).__name__, sender)
        while held.items:  # one of these may have to wait for its payload too
            item = held.items.popleft()
            if self.on_message(*item, deliver):
                deliver(*item)

    # --- counts and the end -----------------------------------------------------------------------

    def counts(self) -> PayloadCounts:
        """The counts of this process's large payloads."""
        segments, mappings = self._sender, self._receiver
        if segments is None or mappings is None:
            return NO_COUNTS
        return PayloadCounts(
            segments.placed, segments.placed_bytes, segments.made, segments.reused, mappings.count,
            segments.served.bytes, dict(segments.carried), segments.segments, segments.pooled_bytes,
            segments.served.bulk_bytes,
        )  # fmt: skip

    def close(self, linger_s: float) -> None:
        """Free all segments once their receivers have mapped them, or the time is up. Idempotent.

        A fork has no segments to free.
        """
        self._closed = True
        segments, mappings, tidying = self._sender, self._receiver, self._tidying
        if segments is None or mappings is None or tidying is None:
            return
        until = time.monotonic() + linger_s
        while not segments.all_taken() and time.monotonic() < until:
            time.sleep(POLL_S)  # receivers only write into shared memory
        tidying.close()
        segments.close()
        mappings.close()

    def forked(self) -> None:
        """In a fork of this process: drop its segments. Takes no lock."""
        self._closed = True
        if self._sender is not None:
            self._sender.forked()
        if self._receiver is not None:
            self._receiver.close()


_alive: list[weakref.ref[Payloads]] = []


def _forked() -> None:
    for ref in _alive:
        payloads = ref()
        if payloads is not None:
            payloads.forked()
