"""Messages between processes that move bulk data beside the control path."""

from typing import ClassVar

from monarch._src.wire.messages.base import Message
from monarch._src.wire.segment_refs import InSegment


class AskData(Message, tag=51):
    """A request to a process that has registered memory; answered by Reply.

    `what`: SERVE: return the TCP address at which the process serves its regions. COME: connect to
    the sender's listener and serve them there (`net/streams/dialling.py`). DROP: revoke
    access to a region. The sender must have the key of the region. For queue pairs of RDMA cards,
    with a body (`rdma/verbs/protocol.py`): CONNECT: make queue pairs to the sender's. GRANT: return
    the addresses of regions. HANG_UP: destroy the queue pairs; not answered.
    """

    call: int
    what: int
    incarnation: bytes
    slot: int
    key: bytes
    body: bytes = b""


class AskPayload(Message, tag=120):
    """A request to the sender of a payload in a segment that the receiver cannot map.

    `word`: the requester's word in the segment. `lasting`: the receiver can map no segment, so the
    sender must use none again. Answered by PayloadSent.
    """

    lent: InSegment
    word: int
    lasting: bool


class PayloadSent(Message, tag=121):
    """The large parts of that payload, beginning with the body if that is large. Payload: these."""

    carries_payload: ClassVar[bool] = True
    number: int
    key: int
    word: int


class AskPart(Message, tag=122):
    """A gateway requests a piece of a part of a payload from its sender on another host.

    For payloads that cannot be fetched over a connection of their own (AskBulk).

    `number` is the sender's number for the payload, `word` its number for this receiver. Answered
    by PayloadPart.
    """

    number: int
    key: int
    word: int
    part: int
    at: int
    size: int


class PayloadPart(Message, tag=123):
    """The requested piece; empty if the payload is gone. Payload: one buffer."""

    carries_payload: ClassVar[bool] = True
    number: int
    key: int
    word: int
    part: int
    at: int


class PayloadTaken(Message, tag=124):
    """The gateway that requested that payload has all of it, or no longer wants it.

    `bulk`: how many of its bytes came over connections of their own. `why`: why not all of them.
    """

    number: int
    key: int
    word: int
    bulk: int = 0
    why: str = ""


class AskBulk(Message, tag=125):
    """A request of one gateway to another, which answers BulkAt.

    Without a body: return the address at which you serve payloads of your host. With one: connect
    to the sender's listener, and serve them there (`net/streams/dialling.py`).
    """

    number: int
    body: bytes = b""


class BulkAt(Message, tag=126):
    """The answer: as for AskData with SERVE and COME. Requests have to name that incarnation."""

    number: int
    incarnation: bytes
    body: bytes


SERVE, DROP, CONNECT, GRANT, HANG_UP, COME = 1, 2, 3, 4, 5, 6
