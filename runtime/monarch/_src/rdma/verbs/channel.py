"""A connection to one peer over several queue pairs: posts requests, counts completions.

Runs in: threads that move bytes post and wait; the card's poller handles completions and posts
further requests. Owns: a completion channel, a completion queue, queue pairs.
Invariants: a queue pair is used only under the lock of its channel. Once a channel is cut, its
queue pairs are destroyed, so the card touches no memory for it any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from monarch._src.rdma.transports.base import DeadlineExceeded, TransportFailed
from monarch._src.rdma.verbs.card import Card, first_packet
from monarch._src.rdma.verbs.device_choice import mtu_of
from monarch._src.rdma.verbs.protocol import Ends
from monarch._src.rdma.verbs.scheduler import Chunk, Traffic, Transfer

LANES = 4
DEPTH = 16  # open requests on a queue pair: at 1 MiB each, enough for any network
GRACE_S = 1.0  # for requests on their way when a deadline passes
_BATCH = 32


class Channel:
    """A connection to one peer. Raises TransportFailed if the card refuses."""

    def __init__(self, card: Card, name: bytes) -> None:
        self.card = card
        self.name = name
        self._verbs = card.verbs
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        depth = min(DEPTH, card.limits.requests)
        self._traffic = Traffic(LANES, depth)
        self._open: list[Any] = []  # in the order they were made
        self._pairs: list[Any] = []
        try:
            self._events, self.fd = card.verbs.completion_channel(card.context)
            self._open.append(self._events)
            self._queue = card.verbs.completion_queue(card.context, LANES * depth, self._events)
            self._open.append(self._queue)
            self._pairs = card.queue_pairs(LANES, self._queue, depth)
            self._verbs.arm(self._queue)
        except BaseException:
            self._destroy()
            raise
        self._first = [first_packet() for _ in self._pairs]
        self.ends = card.ends(self._pairs, self._first)

    def connect(self, theirs: Ends) -> None:
        """Connect the queue pairs with those of the other side. Raises TransportFailed."""
        connect_all(self.card, self._pairs, self._first, theirs)
        self.card.watch(self)

    @property
    def why(self) -> str | None:
        """Why it is unusable, if it is."""
        return self._traffic.why

    def move(self, way: str, chunks: Sequence[Chunk], deadline: float) -> Transfer:
        """Move all chunks; returns when none of them is on its way any more.

        Raises:
            DeadlineExceeded: the deadline has passed.
        """
        if time.monotonic() > deadline:
            raise DeadlineExceeded
        with self._moved:
            transfer = self._traffic.add(way, chunks)
            self._post()
            while not transfer.over:
                left = deadline - time.monotonic()
                if left > 0:
                    self._moved.wait(left)
                    continue
                self._traffic.withdraw(transfer)
                if not transfer.over and left > -GRACE_S:
                    self._moved.wait(GRACE_S + left)
                elif not transfer.over:
                    self._cut("a transfer was not done in time")
                if transfer.over and transfer.left:
                    raise DeadlineExceeded
        return transfer

    def _post(self) -> None:
        for post in self._traffic.due():
            chunk = post.chunk
            try:
                self._verbs.post(
                    self._pairs[post.lane], post.number, post.way, (chunk.address, chunk.lkey),
                    (chunk.remote, chunk.rkey), chunk.size,
                )  # fmt: skip
            except TransportFailed as error:
                self._cut(error.why.reason)
                return

    def on_events(self) -> None:
        """Handle completions. Called on the card's poller."""
        with self._moved:
            if self._traffic.why is not None:
                return
            try:
                self._verbs.take_event(self._events, self._queue)
                self._verbs.arm(self._queue)  # before it polls, so that no completion is missed
                ended = False
                while self._traffic.why is None:
                    found = self._verbs.poll(self._queue, _BATCH)
                    for completion in found:
                        if completion.status:
                            struck = self._traffic.failed(
                                completion.number, completion.status, completion.text
                            )
                            ended |= bool(struck)
                            self._destroy()
                            break
                        ended |= self._traffic.landed(completion.number) is not None
                    self._post()
                    if len(found) < _BATCH:
                        break
            except TransportFailed as error:
                self._cut(error.why.reason)
                ended = True
            if ended:
                self._moved.notify_all()

    def cut(self, why: str) -> None:
        """End the channel; waiting transfers end too. Idempotent."""
        with self._moved:
            self._cut(why)

    def _cut(self, why: str) -> None:
        self._traffic.cut(why)
        self._destroy()
        self._moved.notify_all()

    def _destroy(self) -> None:
        if self._open:
            self.card.unwatch(self)
        self.card.destroy(self._pairs)
        for thing in reversed(self._open):
            self._verbs.close(thing)
        self._pairs, self._open = [], []


def connect_all(card: Card, pairs: Sequence[Any], first: Sequence[int], theirs: Ends) -> None:
    """Connect each local queue pair with the other side's at the same index."""
    if len(theirs.pairs) != len(pairs):
        raise TransportFailed(f"{len(theirs.pairs)} queue pairs there, {len(pairs)} here")
    own = card.place.port, card.place.gid
    mtu = mtu_of((theirs.mtu, card.limits.mtu))
    out = min(card.limits.reads_out, theirs.reads_in)
    into = min(card.limits.reads_in, theirs.reads_out)
    for at, (pair, number) in enumerate(zip(pairs, first, strict=True)):
        card.verbs.connect(pair, own, number, theirs, at, mtu, (out, into))
