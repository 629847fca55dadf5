"""Frames: messages and payloads as bytes, and what is refused, by FrameError and nothing else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch._src.errors import Death
from monarch._src.wire.frames import (
    HEAD,
    NO_PAYLOAD,
    SPLIT_BODY,
    Buffer,
    FrameError,
    Payload,
    decode,
    encode,
)
from monarch._src.wire.messages import (
    OK,
    PROTOCOL,
    Call,
    Hello,
    MeshStopped,
    Message,
    OutputLines,
    ProcEnded,
    Reply,
    Watch,
)

CALL = Call(1 << 40, 3, "step", 2, ["gpus"], [8])
DEATH = Death(None, "SIGKILL", ("last", "words"), None, 1.5, "killed by SIGKILL")
SAMPLES: list[Message] = [
    CALL,
    Reply(3, 2, OK),
    Watch("5.0"),
    MeshStopped(5),
    Hello(PROTOCOL, "client", "client", 7, "ipc:///x", {"python": "3.11.7"}),
    OutputLines(5, 0, [(1, "line"), (2, "other")]),
    ProcEnded("5.0", 5, 0, 77, False, "proc died", DEATH),
]
BUFFERS = st.lists(st.binary(max_size=64), max_size=3)
BODIES = st.one_of(
    st.binary(min_size=1, max_size=64),
    st.integers(SPLIT_BODY - 2, SPLIT_BODY + 2).map(lambda size: b"\x80" * size),
)


def plain(payload: Payload) -> tuple[bytes, list[bytes]]:
    return bytes(payload.body), [bytes(buffer) for buffer in payload.buffers]


def joined(frames: list[Buffer]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


@given(body=BODIES, buffers=BUFFERS)
def test_a_payload_arrives_with_its_message(body: bytes, buffers: list[bytes]) -> None:
    message, payload = decode(encode(CALL, Payload(body, buffers)))
    assert message == CALL
    assert plain(payload) == (body, buffers)
    assert payload.nbytes == len(body) + sum(map(len, buffers))


@given(body=BODIES, buffers=BUFFERS)
def test_views_travel_like_the_bytes_that_they_show(body: bytes, buffers: list[bytes]) -> None:
    seen = Payload(memoryview(body), [memoryview(bytearray(b)) for b in buffers])
    assert joined(encode(CALL, seen)) == joined(encode(CALL, Payload(body, buffers)))


def test_a_small_message_is_one_frame() -> None:
    assert len(encode(CALL, Payload(b"x" * SPLIT_BODY))) == 1


def test_a_large_body_is_sent_as_it_stands_and_not_copied() -> None:
    body = b"x" * (SPLIT_BODY + 1)
    first, second = encode(CALL, Payload(body))
    assert second is body
    assert len(first) < 100


def test_buffers_are_sent_as_they_stand_and_not_copied() -> None:
    buffer = bytearray(10)
    assert encode(CALL, Payload(b"x", [buffer]))[1] is buffer


def test_a_message_without_a_payload_shares_the_empty_one() -> None:
    assert decode(encode(Watch("5.0")))[1] is NO_PAYLOAD


def test_a_head_over_16_mib_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="the head of Watch has 1677"):
        encode(Watch("x" * (1 << 24)))


@pytest.mark.parametrize("message", [m for m in SAMPLES if not m.carries_payload])
@pytest.mark.parametrize("payload", [Payload(b"x"), Payload(b"", [b""]), Payload(b"x" * (1 << 16))])
def test_a_payload_on_a_message_that_carries_none_is_refused(
    message: Message, payload: Payload
) -> None:
    with pytest.raises(FrameError, match=f"{type(message).__name__} carries no payload"):
        decode(encode(message, payload))


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("version", [0, PROTOCOL + 1, 0x7F])
def test_another_protocol_version_is_refused_by_its_number(message: Message, version: int) -> None:
    frame = bytearray(encode(message)[0])
    frame[0] = version
    with pytest.raises(
        FrameError, match=f"protocol version {version}; this side speaks {PROTOCOL}"
    ):
        decode([frame])


def test_no_frames_are_no_message() -> None:
    with pytest.raises(FrameError, match="without frames"):
        decode([])


@pytest.mark.parametrize("size", range(HEAD))
def test_a_frame_shorter_than_its_header_is_refused(size: int) -> None:
    with pytest.raises(FrameError, match=f"a frame of {size} bytes"):
        decode([bytes([PROTOCOL, 0, 0, 0])[:size]])


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
def test_a_message_cut_anywhere_is_refused(message: Message) -> None:
    frame = bytes(encode(message)[0])
    for size in range(len(frame)):
        with pytest.raises(FrameError):
            decode([frame[:size]])


def test_a_body_that_should_be_a_frame_of_its_own_must_be() -> None:
    first, body = encode(CALL, Payload(b"x" * (SPLIT_BODY + 1)))
    for frames in ([first], [bytes(first) + b"x", body]):
        with pytest.raises(FrameError, match="should be a frame of its own"):
            decode(frames)


@pytest.mark.parametrize(
    "fields",
    [
        [12],  # a field is missing
        [12, 5],  # of another type
        [99, "5.0"],  # no such tag
        ["Watch", "5.0"],
        [],
        {"node": "5.0"},
        "text",
        None,
        [20, "5.0", 5, 0, 77, False, "proc died", {"exit_code": None}],
    ],
    ids=str,
)
def test_a_head_that_is_no_message_is_refused(fields: object) -> None:
    head = msgspec.msgpack.encode(fields)
    with pytest.raises(FrameError, match="no message of this protocol"):
        decode([(PROTOCOL << 24 | len(head)).to_bytes(HEAD, "big") + head])


def decodes_or_refuses(frames: list[Buffer]) -> None:
    try:
        message, payload = decode(frames)
    except FrameError:
        return
    assert isinstance(message, Message)
    assert message.carries_payload or payload is NO_PAYLOAD


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_frames_raise_nothing_else(frames: list[bytes]) -> None:
    decodes_or_refuses(list(frames))


@given(head=st.binary(max_size=200), behind=st.binary(max_size=20), split=st.booleans())
@example(head=b"\x91" * 199, behind=b"", split=False)
@example(head=b"\xdd\xff\xff\xff\xff", behind=b"", split=False)
@example(head=b"\xc7\x0c\xff" + b"\xff" * 12, behind=b"", split=False)
def test_random_heads_raise_nothing_else(head: bytes, behind: bytes, split: bool) -> None:
    version = PROTOCOL | (0x80 if split else 0)
    frame = (version << 24 | len(head)).to_bytes(HEAD, "big") + head + behind
    decodes_or_refuses([frame])
    decodes_or_refuses([frame, b"more"])


def test_a_head_nested_too_deeply_is_refused() -> None:
    head = b"\x91" * 1_000_000
    with pytest.raises(FrameError):
        decode([(PROTOCOL << 24 | len(head)).to_bytes(HEAD, "big") + head])


@given(
    message=st.sampled_from(SAMPLES),
    payload=st.sampled_from([NO_PAYLOAD, Payload(b"body", [b"buffer"])]),
    edits=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=4),
    dropped=st.integers(0, 2),
)
def test_damaged_messages_raise_nothing_else(
    message: Message, payload: Payload, edits: list[tuple[int, int]], dropped: int
) -> None:
    frame, *rest = encode(message, payload)
    damaged = bytearray(frame)
    for at, value in edits:
        damaged[at % len(damaged)] = value
    decodes_or_refuses([damaged, *rest][: len(rest) + 1 - dropped])
