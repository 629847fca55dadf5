"""A message and its payload as ZeroMQ frames, and back. No I/O.

    frame 0   u8 version | u24 length of head, big endian | head (MessagePack) | body (pickle)
    frame 1.. out-of-band buffers of the body, in order (pickle protocol 5)

One frame for a small message: each further frame costs about as much as the message itself. A body
over 32 KiB is not copied behind the head: it is frame 1, and the top bit of the version says so.
A body and its buffers are flat: one dimension of single bytes, so that their length is their size.
Malformed input raises `FrameError` and nothing else, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from monarch._src.wire.memory import copied
from monarch._src.wire.messages import PROTOCOL, AnyMessage, Message
from monarch._src.wire.text import decode_surrogates, encode_surrogates

Buffer: TypeAlias = "bytes | bytearray | memoryview"
HEAD = 4
MAX_HEAD = (1 << 24) - 1
SPLIT_BODY = 1 << 15
# Buffers of this many bytes are frames. ZeroMQ hands smaller ones than 8 KiB over at any address,
# and there is no time in it: up to 64 KiB a call takes as long either way.
OUT_OF_BAND = 1 << 14
_BODY_APART = 0x80


class FrameError(ValueError):
    """Bytes that are no message of this protocol."""


class Payload(msgspec.Struct, gc=False):
    """Pickled user data: `body`, and the buffers that travel beside it without a copy."""

    body: bytes | memoryview
    buffers: Sequence[Buffer] = ()

    @property
    def nbytes(self) -> int:
        """Size in bytes of everything."""
        if not self.buffers:
            return len(self.body)
        return len(self.body) + sum(map(len, self.buffers))

    def own(self) -> Payload:
        """The same for a receiver in this process, who may change what it gets unseen by others.

        What cannot be written to is shared: nobody changes it (see `wire.pickling`).
        """
        if not self.buffers:
            return Payload(self.body)
        return Payload(self.body, [_owned(buffer) for buffer in self.buffers])

    def drop(self) -> None:
        """It has been read: whoever still holds it holds no memory. Only for its one receiver."""
        self.body, self.buffers = b"", ()


def _owned(buffer: Buffer) -> Buffer:
    if isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and buffer.readonly):
        return buffer
    return copied(memoryview(buffer))


NO_PAYLOAD = Payload(b"")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyMessage).decode
_VERSION = PROTOCOL << 24
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
    if len(body) > SPLIT_BODY:
        first = (_VERSION | _BODY_APART << 24 | size).to_bytes(HEAD, "big") + head
        return [first, body, *payload.buffers]
    first = (_VERSION | size).to_bytes(HEAD, "big") + head
    if body:
        first += body
    return [first, *payload.buffers] if payload.buffers else [first]


def _decode_differently(head: memoryview, error: Exception) -> AnyMessage:
    """A head that is not as most are; `FrameError` of that error if it is none at all."""
    try:
        if isinstance(error, msgspec.ValidationError):
            return decode_surrogates(head, AnyMessage)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    # Is it nested too deeply, or are we? The thread that receives may be deep in user code.
    msgspec.msgpack.decode(_NESTED)
    raise FrameError(f"no message of this protocol: {error}") from None


def decode(frames: Sequence[Buffer]) -> tuple[AnyMessage, Payload]:
    """The message and payload in these frames.

    Raises:
        FrameError: the bytes are no message of this protocol version.
        RecursionError: this thread's stack is too full to tell.
    """
    if not frames:
        raise FrameError("a message without frames")
    view = memoryview(frames[0])
    if len(view) < HEAD:
        raise FrameError(f"a frame of {len(view)} bytes has no room for its header")
    if view[0] & ~_BODY_APART != PROTOCOL:
        raise FrameError(f"protocol version {view[0] & ~_BODY_APART}; this side speaks {PROTOCOL}")
    end = HEAD + int.from_bytes(view[1:HEAD], "big")
    if end > len(view):
        raise FrameError(f"the head ends at byte {end} of a frame of {len(view)}")
    head = view[HEAD:end]
    try:
        message = _decode(head)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        message = _decode_differently(head, error)
    apart = view[0] & _BODY_APART
    if end == len(view) and len(frames) == 1 and not apart:
        return message, NO_PAYLOAD
    if not message.carries_payload:
        raise FrameError(f"{type(message).__name__} carries no payload, but one came with it")
    if apart:
        if len(frames) < 2 or end != len(view):
            raise FrameError("the body should be a frame of its own, and is not")
        return message, Payload(memoryview(frames[1]), frames[2:])
    return message, Payload(view[end:], frames[1:])
