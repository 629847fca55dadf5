"""The protocol between the two ends of a link between hosts, around the messages. No I/O.

    frame 0    u8 0x4D | MessagePack array: tag, fields
    frame ..   after a Data: the frames of one message, see `wire.frames`

The first byte and the fields of a LinkHello are the same in every version, so that two nodes of
different versions can still report the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from monarch._src.wire.frames import Buffer, FrameError
from monarch._src.wire.msgpack_text import UNREADABLE

LINK_PROTOCOL = 2
MARK = 0x4D
LONGEST_HEAD = 1 << 16


class LinkMessage(msgspec.Struct, array_like=True, gc=False, tag=0):
    """Base of all messages of links."""


class LinkHello(LinkMessage, tag=1):
    """The first message on every connection, from both sides.

    `incarnation` is larger in each incarnation of a node; `peer` is that of the other side, 0 if it
    is not known yet. `received` and `limit`: see Ack. `answer`: asks for a hello.
    """

    node: str
    incarnation: int
    versions: dict[str, str]
    peer: int
    received: int
    limit: int
    answer: bool


class Data(LinkMessage, tag=2):
    """The message with that number; the first of a session is 1."""

    session: int
    number: int
    received: int
    limit: int


class Ack(LinkMessage, tag=3):
    """All messages up to `received` have come. Bytes before `limit` of the stream may be sent."""

    session: int
    received: int
    limit: int


class Ping(LinkMessage, tag=4):
    """Asks for a Pong. `number` counts the Pings."""

    session: int
    number: int
    received: int
    limit: int


class Pong(LinkMessage, tag=5):
    """The answer to the Ping of that number."""

    session: int
    number: int
    received: int
    limit: int


class Bye(LinkMessage, tag=6):
    """This session has ended here. `lost`: the other side counts as lost; otherwise it closed."""

    session: int
    lost: bool
    why: str


class LinkRefused(LinkMessage, tag=7):
    """The two sides cannot work together; `why` has a table of versions, for people."""

    session: int
    why: str


AnyLinkMessage: TypeAlias = "LinkHello | Data | Ack | Ping | Pong | Bye | LinkRefused"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LinkHello | Data | Ack | Ping | Pong | Bye | LinkRefused).decode
_FIRST = bytes([MARK])


def encode_link(message: LinkMessage) -> bytes:
    """Frame 0. Raises ValueError if it contains text that is not UTF-8."""
    return _FIRST + _encode(message)


def decode_link(frames: Sequence[Buffer]) -> AnyLinkMessage:
    """The message in frame 0.

    Raises:
        FrameError: the bytes are not a message of a link, or have frames that they may not have.
    """
    if not frames:
        raise FrameError("a message without frames")
    view = memoryview(frames[0])
    if not 1 < len(view) <= LONGEST_HEAD:
        raise FrameError(f"the head of a link's message can't have {len(view)} bytes")
    if view[0] != MARK:
        raise FrameError(f"a link's message begins with {MARK:#x}, and this with {view[0]:#x}")
    try:
        message = _decode(view[1:])
    except UNREADABLE as error:
        raise FrameError(f"not a message of a link: {error}") from None
    carries = isinstance(message, Data)
    if carries != (len(frames) > 1):
        raise FrameError(f"{type(message).__name__} came with {len(frames) - 1} further frames")
    return message
