"""Large parts of a payload for other hosts only, served from the sender's memory.

Runs in: a client that serves other hosts itself (`payload.hosts.server`), on the sending thread;
dropped on any thread. Owns: references to the parts.
Invariants: the parts do not change, so they are not copied. They are in no segment and cannot be
lent; a process of this host that gets the message anyway receives the parts with it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from secrets import randbits

from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.sender import HEADER, aligned, host_number, parts_of
from monarch._src.wire.frames import Buffer, Payload, Placed
from monarch._src.wire.messages import Message
from monarch._src.wire.segment_refs import InSegment, Span


def in_place(served: OutgoingPayloads, payload: Payload, *, sole: bool) -> Payload:
    """The same payload, ready to be sent to other hosts. `sole`: once, to one process."""
    parts, body, readonly = parts_of(payload)
    placed = InPlace(served, parts, body=body, readonly=readonly, sole=sole)
    return Payload(b"" if body else payload.body, (placed,))


class InPlace(Placed):
    """See the module's docstring. Its `InSegment` names no real segment: only its sizes count."""

    __slots__ = ("_body", "_key", "_parts", "_readonly", "_served", "_sole", "_spans")

    def __init__(
        self,
        served: OutgoingPayloads,
        parts: Sequence[Buffer],
        *,
        body: bool,
        readonly: bool,
        sole: bool,
    ) -> None:
        self._served = served
        self._parts = [memoryview(part).toreadonly() for part in parts]
        self._body = body
        self._readonly = readonly
        self._sole = sole
        self._key = randbits(62)
        spans: list[Span] = []
        at = HEADER
        for part in self._parts:
            spans.append((at, len(part)))
            at += aligned(len(part))
        self._spans = tuple(spans)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def lend(self, node: str, message: Message) -> InSegment | None:
        """See `Placed`."""
        return None

    def unsent(self, lent: InSegment, node: str, message: Message) -> None:
        """See `Placed`. There is no loan to end."""

    def serve(self, node: str, site: str) -> InSegment:
        """See `Placed`."""
        number = self._served.add(node, site, self._key, self._parts)
        at, size = self._spans[-1]
        return InSegment(
            host_number(), os.getpid(), 0, 0, self._key, 0, at + aligned(size), number,
            self._sole, self._readonly, self._body, self._spans,
        )  # fmt: skip

    def unserve(self, lent: InSegment) -> None:
        """See `Placed`."""
        self._served.taken(lent.key, lent.word)

    def carried(self, payload: Payload) -> Payload:
        """See `Placed`."""
        views = self._parts
        return Payload(views[0], views[1:]) if self._body else Payload(payload.body, views)
