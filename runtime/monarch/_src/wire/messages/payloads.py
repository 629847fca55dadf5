"""What processes that move bytes beside the control path have to say to each other."""

from typing import ClassVar

from monarch._src.wire.messages.base import Message
from monarch._src.wire.segment_refs import InSegment


class AskData(Message, tag=51):
    """Asked of a process that has registered memory; answered by Reply.

    `what`: SERVE, say where your regions are served over TCP; COME, connect to where I listen and
    serve them there (`rdma/transports/tcp_connect.py`); DROP, let nobody reach a region any more.
    Only who has the key of the region is heard. For queue pairs of RDMA cards, with a body
    (`rdma/verbs/protocol.py`): CONNECT, have some that lead to mine; GRANT, say where regions lie;
    HANG_UP, which is not answered, destroy them.
    """

    call: int
    what: int
    incarnation: bytes
    slot: int
    key: bytes
    body: bytes = b""


class AskPayload(Message, tag=120):
    """Asked of whoever has sent a payload in a segment that cannot be mapped here.

    `word`: that of the asker. `lasting`: no segment can, so send none again. Answered by
    PayloadSent.
    """

    lent: InSegment
    word: int
    lasting: bool


class PayloadSent(Message, tag=121):
    """The large parts of that payload: the body first if it is one of them. Payload: these."""

    carries_payload: ClassVar[bool] = True
    number: int
    key: int
    word: int


class AskPart(Message, tag=122):
    """Asked by a gateway of whoever has sent a payload to its host: that piece of that part.

    For payloads that cannot be had by a connection of their own (AskBulk).

    The payload is that which the sender calls `number`, and `word` stands for this receiver of it.
    Answered by PayloadPart.
    """

    number: int
    key: int
    word: int
    part: int
    at: int
    size: int


class PayloadPart(Message, tag=123):
    """That piece; without any bytes if the payload is gone. Payload: one buffer."""

    carries_payload: ClassVar[bool] = True
    number: int
    key: int
    word: int
    part: int
    at: int


class PayloadTaken(Message, tag=124):
    """The gateway that asked for it has all of that payload, or does not want it any more.

    `bulk`: how many of its bytes came by connections of their own. `why`: why not all of them.
    """

    number: int
    key: int
    word: int
    bulk: int = 0
    why: str = ""


class AskBulk(Message, tag=125):
    """Asked by a gateway of another, which answers BulkAt.

    Without a body: where do you serve payloads of your host? With one: connect to where I listen,
    and serve them there (`rdma/transports/tcp_connect.py`).
    """

    number: int
    body: bytes = b""


class BulkAt(Message, tag=126):
    """The answer: as that of AskData for SERVE and COME. Requests are to name that incarnation."""

    number: int
    incarnation: bytes
    body: bytes


SERVE, DROP, CONNECT, GRANT, HANG_UP, COME = 1, 2, 3, 4, 5, 6
