"""What the two ends of a link between hosts say to each other, around the messages. No I/O.

    frame 0    u8 0x4D | MessagePack array: tag, fields
    frame ..   after a Data: the frames of one message, as of `wire.frames`

The first byte and the fields of a LinkHello are the same in every version, so that two that
differ can still tell each other how.
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
    """Base of all of them."""


class LinkHello(LinkMessage, tag=1):
    """First on every connection, from both sides.

    `incarnation` is larger in each life of a node; `peer` is that of the other side, 0 if it is not
    known yet. `received` and `limit`: as of Ack. `answer`: say hello too.
    """

    node: str
    incarnation: int
    versions: dict[str, str]
    peer: int
    received: int
    limit: int
    answer: bool


class Data(LinkMessage, tag=2):
    """The message of that number; the first of a session is 1."""

    session: int
    number: int
    received: int
    limit: int


class Ack(LinkMessage, tag=3):
    """All up to `received` has come. What begins before byte `limit` of all that is sent may be."""

    session: int
    received: int
    limit: int


class Ping(LinkMessage, tag=4):
    """Say what has come. `number` counts them."""

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
    """This session has ended here. `lost`: the other side counts as lost, else it was closed."""

    session: int
    lost: bool
    why: str


class LinkRefused(LinkMessage, tag=7):
    """We can't work together; `why` is for people, and shows the table from this side."""

    session: int
    why: str


AnyLinkMessage: TypeAlias = "LinkHello | Data | Ack | Ping | Pong | Bye | LinkRefused"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LinkHello | Data | Ack | Ping | Pong | Bye | LinkRefused).decode
_FIRST = bytes([MARK])


def encode_link(message: LinkMessage) -> bytes:
    """Frame 0. ValueError if it holds text that is no UTF-8."""
    return _FIRST + _encode(message)


def decode_link(frames: Sequence[Buffer]) -> AnyLinkMessage:
    """What frame 0 says.

    Raises:
        FrameError: the bytes are no message of a link, or carry frames that they may not.
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
        raise FrameError(f"no message of a link: {error}") from None
    carries = isinstance(message, Data)
    if carries != (len(frames) > 1):
        raise FrameError(f"{type(message).__name__} came with {len(frames) - 1} frames behind it")
    return message
