"""Which way messages go to the procs of a mesh, and in which order those that come are taken.

Runs in: any process; what sends, on the thread that calls; what receives, on the one that receives.
A few ranks are sent to one by one, directly. Many get one *cast*, which the host agent passes on,
and whose answers it sends back merged: then a call costs its sender the same whatever their number.
`core.order` keeps both routes in one order.

A cast takes one more hop. At 16 ranks that makes a call 40 % slower, at 64 10 %, at 256 nothing,
while its sender pays 1/2, 1/5 and 1/10 (docs/performance.md). What is large goes directly: the
agent is to hold no payloads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TypeAlias

import msgspec

from monarch._src.actor.refs import Known, ProcsRef
from monarch._src.core.ids import AGENT, parse_proc_node
from monarch._src.core.order import Incoming, Outgoing
from monarch._src.net.directory import address_of
from monarch._src.net.node import Node
from monarch._src.shape import NDSlice, Region
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import (
    ELSEWHERE,
    Answer,
    Call,
    Cast,
    Reply,
    SpawnActor,
    StopActor,
    StopProc,
    Watch,
)

CAST_FROM = 32  # ranks
CAST_LIMIT = 64 * 1024  # bytes of payload
GATHERED_LIMIT = 4096  # bytes of one answer

Ordered: TypeAlias = "Call | SpawnActor | StopActor | StopProc"
Taken: TypeAlias = "tuple[str, Ordered, Payload]"


class Routes:
    """The routes of one process, and the order on them."""

    def __init__(self, node: Node, known: Known, rank: int) -> None:
        self._node = node
        self._known = known
        self._rank = rank
        # By mesh. Two threads that number and send by turns would send out of order.
        self._lanes: dict[int, tuple[threading.Lock, Outgoing]] = {}
        self._incoming: dict[str, Incoming[Taken]] = {}

    # --- nodes ------------------------------------------------------------------------------------

    def reach(self, ref: ProcsRef, rank: int) -> str:
        """The node name of a proc, with a route to it."""
        node = ref.node(rank)
        if not self._node.knows(node) and rank not in self._known.dead(ref.uid):
            self._known.learn(ref)
            if ref.owner == self._node.name:  # one of ours that was stopped, and forgotten since
                self._node.expect(node)
            else:
                self._node.link(node, address_of(ref.directory, node))
            self._node.send(AGENT, Watch(node, ref.owner))
        return node

    def reach_node(self, node: str, address: str) -> None:
        """Have a route to a node that listens at that address."""
        if not self._node.knows(node):
            place = parse_proc_node(node)
            if place is not None and place[1] in self._known.dead(place[0]):
                return
            self._node.link(node, address)
            if place is not None:
                self._node.send(AGENT, Watch(node))

    def forget(self, ref: ProcsRef) -> None:
        """A mesh has ended."""
        self._lanes.pop(ref.uid, None)
        for rank in range(ref.extent.nelements):
            node = ref.node(rank)
            self._node.drop(node)
            self._incoming.pop(node, None)

    # --- out --------------------------------------------------------------------------------------

    def post(
        self,
        ref: ProcsRef,
        region: Region,
        message: Ordered,
        payload: Payload = NO_PAYLOAD,
        *,
        skip: Collection[int] = (),
        gather: bool = False,
        each: bool = False,
    ) -> Collection[int]:
        """Send to every rank of a region, each with its position in it as `rank`.

        Args:
            skip: positions that are known to be of no use.
            gather: have the answers to a cast merged; `each`: but sent on as they come.

        Returns:
            The positions that it could not be sent to; what was sent may still be lost on the way.
        """
        lane = self._lanes.get(ref.uid)
        if lane is None:
            lane = self._lanes.setdefault(ref.uid, (threading.Lock(), Outgoing()))
        lock, outgoing = lane
        if len(region) >= CAST_FROM and payload.nbytes <= CAST_LIMIT and not ref.nodes:
            self._known.learn(ref)
            with lock:
                sent = self._cast(outgoing, ref, region, message, payload, gather, each)
            return () if sent else range(len(region))
        missed: list[int] = []
        send = self._node.send
        own = self._node.name
        with lock:
            for position, rank in enumerate(region.ranks()):
                if position in skip:
                    continue
                node = self.reach(ref, rank)
                message.rank = position
                message.after = outgoing.direct(rank)
                # To ourselves it is queued as it is, and there are more to come.
                each_own = msgspec.structs.replace(message) if node == own else message
                if not send(node, each_own, payload):
                    missed.append(position)
        return missed

    def _cast(
        self, outgoing: Outgoing, ref: ProcsRef, region: Region, message: Ordered,
        payload: Payload, gather: bool, each: bool,
    ) -> bool:  # fmt: skip
        number, fences = outgoing.cast(region)
        view = region.ndslice
        where = (view.offset, tuple(view.sizes), tuple(view.strides))
        call = message.call if gather and isinstance(message, (Call, StopActor)) else 0
        cast = Cast(
            self._node.name, self._node.address, ref.owner, ref.uid, number, where, fences, call,
            each, message,
        )  # fmt: skip
        return self._node.send(AGENT, cast, payload)

    def reply(self, peer: str, message: Call | StopActor, status: int, payload: Payload) -> None:
        """Answer a message that `peer` has sent."""
        if message.relayed:
            if payload.nbytes <= GATHERED_LIMIT:
                answer = Answer(peer, message.call, message.rank, status)
                self._node.send(AGENT, answer, payload)
                return
            self._node.send(AGENT, Answer(peer, message.call, message.rank, ELSEWHERE))
        if isinstance(message, Call) and message.reply_to:
            peer = message.reply_to
            self.reach_node(peer, message.reply_address)
        self._node.send(peer, Reply(message.call, message.rank, status), payload)

    # --- in ---------------------------------------------------------------------------------------

    def came(
        self, peer: str, message: Ordered, payload: Payload,
        take: Callable[[str, Ordered, Payload], None],
    ) -> None:  # fmt: skip
        """A message came directly: `take` it in its turn, and what waited for it."""
        incoming = self._incoming.get(peer)
        if incoming is None:
            incoming = self._incoming[peer] = Incoming()
        if incoming.direct(message.after, (peer, message, payload)):
            take(peer, message, payload)
        if incoming.holds:
            for item in incoming.released():
                take(*item)

    def cast_came(
        self, cast: Cast, payload: Payload, take: Callable[[str, Ordered, Payload], None]
    ) -> None:
        """A message came as a cast."""
        peer, message = cast.sender, cast.message
        message.rank = _position(self._rank, *cast.region)
        if isinstance(message, (Call, StopActor)):
            message.relayed = bool(cast.call)
        if isinstance(message, Call) and not message.reply_to:
            message.reply_to, message.reply_address = peer, cast.address
        incoming = self._incoming.get(peer)
        if incoming is None:
            incoming = self._incoming[peer] = Incoming()
        fence = next((count for rank, count in cast.fences if rank == self._rank), 0)
        if incoming.cast(cast.number, fence, (peer, message, payload)):
            take(peer, message, payload)
        if incoming.holds:
            for item in incoming.released():
                take(*item)


@lru_cache(maxsize=64)
def _position(rank: int, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return NDSlice(offset=offset, sizes=sizes, strides=strides).index(rank)
