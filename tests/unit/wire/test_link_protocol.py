"""What the ends of a link say, as bytes: read back as written, and nothing else is read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.wire.frames import FrameError
from monarch._src.wire.link_protocol import (
    LONGEST_HEAD,
    Ack,
    Bye,
    Data,
    LinkHello,
    LinkMessage,
    LinkRefused,
    Ping,
    Pong,
    decode_link,
    encode_link,
)

HELLO = LinkHello("agent-1", 1 << 62, {"monarch": "0.1.0"}, 0, 0, 8 << 20, True)
MESSAGES = [
    HELLO, Data(1, 2, 3, 4), Ack(1, 2, 3), Ping(1, 2, 3, 4), Pong(1, 2, 3, 4),
    Bye(1, True, "gone"), LinkRefused(1, "table"),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_written_is_read_back(message: LinkMessage) -> None:
    frames = [encode_link(message), *([b"frame"] if isinstance(message, Data) else [])]
    assert decode_link(frames) == message


def test_a_data_of_nothing_and_frames_behind_anything_else_are_refused() -> None:
    with pytest.raises(FrameError, match="Data came with 0 further frames"):
        decode_link([encode_link(Data(1, 2, 3, 4))])
    with pytest.raises(FrameError, match="Ack came with 1 further frames"):
        decode_link([encode_link(Ack(1, 2, 3)), b"?"])
    with pytest.raises(FrameError, match="without frames"):
        decode_link([])


def test_what_a_later_version_adds_to_a_hello_does_not_hide_what_it_says() -> None:
    later = [*msgspec.to_builtins(HELLO), "something new", 7]
    assert decode_link([b"\x4d" + msgspec.msgpack.encode(later)]) == HELLO


@given(
    st.binary(max_size=200)
    | st.binary(max_size=100).map(b"\x4d".__add__)
    | st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=8),
        max_leaves=20,
    ).map(lambda value: b"\x4d" + msgspec.msgpack.encode(value)),
    st.lists(st.binary(max_size=20), max_size=3),
)
def test_any_bytes_are_a_message_or_a_frame_error(first: bytes, more: list[bytes]) -> None:
    try:
        found = decode_link([first, *more])
    except FrameError:
        return
    assert isinstance(found, LinkMessage)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_message_with_a_byte_changed_or_cut_off_is_a_message_or_a_frame_error(
    message: LinkMessage, data: st.DataObject
) -> None:
    whole = bytearray(encode_link(message))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    try:
        decode_link([bytes(whole[:cut])])
    except FrameError:
        pass


def test_nesting_and_size_are_bounded() -> None:
    for first in (b"\x4d" + b"\x91" * 60_000, b"\x4d" + b"\xc0" * LONGEST_HEAD, b"", b"\x4d"):
        with pytest.raises(FrameError):
            decode_link([first])
