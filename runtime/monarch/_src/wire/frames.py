"""A message and its payload as frames, and back. No I/O.

    frame 0   u8 version | u24 length of head, big endian | head (MessagePack) | body (pickle)
    frame 1.. out-of-band buffers of the body, in order (pickle protocol 5)

A message is one frame, unless its large parts could not be put into a segment: then each of them is
a further frame. The top bit of the version means that frame 1 is the body. The next bit means that
the large parts are in a segment: a u32 length and an `InSegment` (MessagePack) follow the head,
then the body. A part is large from `SEGMENT_FROM` bytes on.
A body and its buffers are flat: one dimension of single bytes, so that their length is their size.
Malformed input raises `FrameError` and nothing else, whatever the bytes.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import msgspec

from monarch._src.wire.memory_copies import CHEAP, copied
from monarch._src.wire.messages import PROTOCOL, AnyMessage, Message
from monarch._src.wire.msgpack_text import UNREADABLE, decode_surrogates, encode_surrogates
from monarch._src.wire.segment_refs import SEGMENT_FROM, InSegment

Buffer: TypeAlias = "bytes | bytearray | memoryview"
HEAD = 4
MAX_HEAD = (1 << 24) - 1
_BODY_APART = 0x80
_IN_SEGMENT = 0x40
_FLAGS = _BODY_APART | _IN_SEGMENT


class FrameError(ValueError):
    """The bytes are not a message of this protocol."""


class Payload(msgspec.Struct, gc=False):
    """Pickled user data: `body`, and the buffers that travel beside it without a copy.

    `buffers` may be one `Apart` instead. `loose`: the indices of buffers whose memory may still
    change: it is copied (`settled`), or put into a segment, before the sending call returns.
    """

    body: bytes | memoryview
    buffers: Sequence[Buffer | Apart] = ()
    loose: Sequence[int] = ()

    @property
    def nbytes(self) -> int:
        """The size of everything in bytes."""
        if not self.buffers:
            return len(self.body)
        return len(self.body) + sum(map(len, self.buffers))

    def own(self) -> Payload:
        """A payload for a receiver in this process: its changes are not seen by others.

        Memory that cannot be written to is shared (see `pickling.pickler`).
        """
        if not self.buffers:
            return Payload(self.body)
        loose = self.loose
        return Payload(
            self.body,
            [_owned(buffer, at in loose) for at, buffer in enumerate(self.buffers)],
        )

    def settled(self) -> Payload:
        """The same, with copies of the memory that may still change."""
        if not self.loose:
            return self
        buffers = list(self.buffers)
        for at in self.loose:
            buffers[at] = copied(cast(memoryview, buffers[at]))
        return Payload(self.body, buffers)

    @property
    def is_large(self) -> bool:
        """Whether a part of it belongs into a segment."""
        return bool(self.buffers) or len(self.body) >= SEGMENT_FROM

    @property
    def wire_bytes(self) -> int:
        """Bytes that a socket carries for it."""
        return len(self.body) if apart_of(self) is not None else self.nbytes

    def drop(self) -> None:
        """Free the memory after reading. Only for a payload with one receiver."""
        self.body, self.buffers = b"", ()


class Placed(ABC):
    """The large parts of a payload in a segment of this process. A base for the driver's own."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """The bytes of all parts."""

    @abstractmethod
    def lend(self, node: str, message: Message) -> InSegment | None:
        """Lend the parts to all receivers of a message to that node; None: they cannot map it."""

    @abstractmethod
    def unsent(self, lent: InSegment, node: str, message: Message) -> None:
        """End the loan for a message that could not be sent."""

    @abstractmethod
    def serve(self, node: str, site: str) -> InSegment:
        """Keep the parts for a node of another host, whose gateway will ask for them."""

    @abstractmethod
    def unserve(self, lent: InSegment) -> None:
        """The message could not be sent: drop the parts that `serve` kept."""

    @abstractmethod
    def carried(self, payload: Payload) -> Payload:
        """A payload that contains its large parts itself."""


class Borrowed(ABC):
    """The received large parts of a payload, alive as long as there are references to them."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """The bytes of all parts."""

    @abstractmethod
    def carried(self, payload: Payload) -> Payload:
        """The payload with views of the parts."""


Apart: TypeAlias = "Placed | InSegment | Borrowed"
KINDS = (Placed, InSegment, Borrowed)


def _owned(buffer: Buffer | Apart, loose: bool) -> Buffer | Apart:
    if isinstance(buffer, (bytes, *KINDS)):
        return buffer
    if isinstance(buffer, memoryview) and buffer.readonly and not loose:
        return buffer
    return copied(memoryview(buffer))


def apart_of(payload: Payload) -> Apart | None:
    """The object that stands for its large parts, if they are elsewhere."""
    buffers = payload.buffers
    if buffers and isinstance(buffers[0], KINDS):
        return buffers[0]
    return None


def carried(payload: Payload) -> Payload:
    """A received payload, with its large parts as buffers."""
    apart = apart_of(payload)
    return apart.carried(payload) if isinstance(apart, Borrowed) else payload


NO_PAYLOAD = Payload(b"")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyMessage).decode
_decode_in_segment = msgspec.msgpack.Decoder(InSegment).decode
_word = struct.Struct(">I").unpack_from
_VERSION = PROTOCOL << 24
_SHORT_ARRAY = 0x90  # begins a MessagePack array of at most 15 items
_OF_EVERY_VERSION = frozenset({1, 2})  # the tags of Hello and Refused
_NESTED = b"\x91" * 16 + b"\xc0"  # deeper than any message


def encode(message: Message, payload: Payload = NO_PAYLOAD) -> list[Buffer]:
    """Frames ready to send.

    Raises:
        ValueError: the head is larger than 16 MiB.
    """
    try:
        head = _encode(message)
    except UnicodeEncodeError:
        head = encode_surrogates(message)
    size = len(head)
    if size > MAX_HEAD:
        raise ValueError(f"the head of {type(message).__name__} has {size} bytes, over {MAX_HEAD}")
    body = payload.body
    buffers = payload.buffers
    if not buffers and len(body) < SEGMENT_FROM:
        return [b"".join(((_VERSION | size).to_bytes(HEAD, "big"), head, body))]
    if buffers and isinstance(buffers[0], InSegment):
        where = _encode(buffers[0])
        word = (_VERSION | _IN_SEGMENT << 24 | size).to_bytes(HEAD, "big")
        return [b"".join((word, head, len(where).to_bytes(4, "big"), where, body))]
    beside = cast("Sequence[Buffer]", buffers)
    if len(body) >= SEGMENT_FROM:
        first = (_VERSION | _BODY_APART << 24 | size).to_bytes(HEAD, "big") + head
        return [first, body, *beside]
    return [b"".join(((_VERSION | size).to_bytes(HEAD, "big"), head, body)), *beside]


def _decode_differently(head: memoryview, error: Exception) -> AnyMessage:
    """The message of a head that contains surrogates; otherwise raises `FrameError`."""
    try:
        if isinstance(error, msgspec.ValidationError):
            return decode_surrogates(head, AnyMessage)
    except UNREADABLE:
        pass
    # Is the head nested too deeply, or this thread's stack almost full? It may run user code.
    msgspec.msgpack.decode(_NESTED)
    raise FrameError(f"not a message of this protocol: {error}") from None


def decode(frames: Sequence[Buffer]) -> tuple[AnyMessage, Payload]:
    """The message and payload in these frames.

    Raises:
        FrameError: the bytes are not a message of this protocol version.
        RecursionError: this thread's stack is too full to decode them.
    """
    if not frames:
        raise FrameError("a message without frames")
    first = frames[0]  # usually bytes: slices of so few bytes are cheaper than views
    size = len(first)
    if size < HEAD:
        raise FrameError(f"a frame of {size} bytes has no room for its header")
    (word,) = _word(first)
    end, flags = HEAD + word - _VERSION, 0  # the end of the head, if no flag is set
    if not HEAD <= end <= size <= MAX_HEAD:
        end, flags = _end_and_flags(word, size, first)
    head = first[HEAD:end]
    try:
        message = _decode(head)
    except UNREADABLE as error:
        message = _decode_differently(memoryview(head), error)
    if flags or len(frames) > 1:
        return message, _payload_beside(message, frames, end, flags)
    if end == size:
        return message, NO_PAYLOAD
    if not message.carries_payload:
        raise _carries_none(message)
    body: Any = first[end:] if size < CHEAP else memoryview(first)[end:]
    return message, Payload(body)


def _end_and_flags(word: int, size: int, first: Buffer) -> tuple[int, int]:
    """The end of the head in a frame of that size, and the flags, from its first word."""
    version, end = word >> 24, HEAD + (word & MAX_HEAD)
    if version & ~_FLAGS != PROTOCOL and not _is_of_every_version(first):
        raise FrameError(f"protocol version {version & ~_FLAGS}; this side speaks {PROTOCOL}")
    if end > size:
        raise FrameError(f"the head ends at byte {end} of a frame of {size}")
    return end, version & _FLAGS


def _is_of_every_version(first: Buffer) -> bool:
    """Whether it is a Hello or a Refused, by which two sides tell each other their versions.

    These keep their tag, their place in the array and their fields; later versions append fields.
    """
    start = bytes(memoryview(first)[HEAD : HEAD + 2])
    return len(start) == 2 and start[0] & 0xF0 == _SHORT_ARRAY and start[1] in _OF_EVERY_VERSION


def _payload_beside(message: AnyMessage, frames: Sequence[Buffer], end: int, flags: int) -> Payload:
    """The payload of a message of several parts, whose head ends at `end`."""
    if not message.carries_payload:
        raise _carries_none(message)
    if flags & _IN_SEGMENT:
        return _in_segment(frames[0], end, len(frames))
    if not flags:
        body: Any = frames[0][end:]
        return Payload(body, frames[1:])
    if len(frames) < 2 or end != len(frames[0]):
        raise FrameError("the body should be a frame of its own, but is not")
    return Payload(memoryview(frames[1]), frames[2:])


def _carries_none(message: AnyMessage) -> FrameError:
    return FrameError(f"{type(message).__name__} carries no payload, but one came with it")


def lent_in(frames: Sequence[Buffer]) -> InSegment | None:
    """The segment with the large parts of the message in these frames, if they are in one.

    Raises:
        FrameError: the bytes are not such a message.
    """
    first = frames[0] if frames else b""
    if len(first) < HEAD or not first[0] & _IN_SEGMENT:
        return None
    end = HEAD + (int(_word(first)[0]) & MAX_HEAD)
    return _in_segment(first, end, len(frames)).buffers[0]  # pyright: ignore[reportReturnType]


def with_parts(frames: Sequence[Buffer], apart: InSegment | Sequence[Buffer]) -> list[Buffer]:
    """The frames of a message, with its large parts in another segment, or beside it.

    `frames`: frames for which `lent_in` has succeeded.
    """
    first = memoryview(frames[0])
    head = HEAD + (int(_word(first)[0]) & MAX_HEAD)
    begin = head + 4 + int.from_bytes(first[head : head + 4], "big")
    version, said = PROTOCOL, bytes(first[begin:])
    if isinstance(apart, InSegment):
        where = _encode(apart)
        said = len(where).to_bytes(4, "big") + where + said
        return [_headed(PROTOCOL | _IN_SEGMENT, first[HEAD:head], said)]
    where = _decode_in_segment(first[head + 4 : begin])
    if where.body:
        version |= _BODY_APART
    return [_headed(version, first[HEAD:head], said), *apart]


def _headed(version: int, head: memoryview, rest: bytes) -> bytes:
    return b"".join(((version << 24 | len(head)).to_bytes(HEAD, "big"), head, rest))


def _in_segment(first: Buffer, end: int, frames: int) -> Payload:
    """The payload of a message whose head ends at `end`."""
    begin = end + 4
    until = begin + int.from_bytes(first[end:begin], "big")
    if frames != 1 or begin > len(first) or until > len(first):
        raise FrameError("the segment reference of the payload exceeds its frame")
    try:
        where = _decode_in_segment(first[begin:until])
    except UNREADABLE as error:
        raise FrameError(f"the segment reference of the payload is unreadable: {error}") from None
    if not where.spans:
        raise FrameError("a payload in a segment has no part there")
    return Payload(cast("bytes | memoryview", first[until:]), (where,))
