"""Frames: messages and payloads as bytes, and what is refused, by FrameError and nothing else."""

from __future__ import annotations

import sys
import typing

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from monarch._src.failures.report import Death
from monarch._src.wire.frames import (
    HEAD,
    NO_PAYLOAD,
    Buffer,
    FrameError,
    Payload,
    apart_of,
    decode,
    encode,
)
from monarch._src.wire.messages import (
    OK,
    PROTOCOL,
    AnyMessage,
    Call,
    Hello,
    MeshStopped,
    Message,
    OutputLines,
    ProcEnded,
    Refused,
    Reply,
    Watch,
)
from monarch._src.wire.msgpack_text import decode_surrogates, encode_surrogates
from monarch._src.wire.segment_refs import SEGMENT_FROM, InSegment
from tests.support.payloads import buffers_of
from tests.unit.wire.drawn import ANY_TEXT, EXAMPLES, of_type

CALL = Call(1 << 40, 3, "step", 2, ["gpus"], [8])
DEATH = Death(None, "SIGKILL", ("last", "words"), None, 1.5, "killed by SIGKILL")
NOT_DECODED = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")
SAMPLES: list[Message] = [
    CALL,
    Call(5, 0, NOT_DECODED, 2, [NOT_DECODED], [8]),
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
    st.integers(SEGMENT_FROM - 2, SEGMENT_FROM + 2).map(lambda size: b"\x80" * size),
)


def plain(payload: Payload) -> tuple[bytes, list[bytes]]:
    return bytes(payload.body), [bytes(buffer) for buffer in buffers_of(payload)]


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


@pytest.mark.parametrize("kind", typing.get_args(AnyMessage), ids=lambda kind: kind.__name__)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent_whatever_text_it_holds(
    kind: type[Message], data: st.DataObject
) -> None:
    message = data.draw(of_type(kind, ANY_TEXT))
    arrived, payload = decode(encode(message))
    assert arrived == message
    assert type(arrived) is kind
    assert payload is NO_PAYLOAD


@given(body=BODIES, buffers=BUFFERS)
def test_a_payload_travels_beside_text_that_utf_8_has_no_room_for(
    body: bytes, buffers: list[bytes]
) -> None:
    call = Call(1, 2, NOT_DECODED, 0, [NOT_DECODED], [8])
    message, payload = decode(encode(call, Payload(body, buffers)))
    assert message == call
    assert plain(payload) == (body, buffers)


class Noted(Message, tag=33):
    """As a message could be that holds bytes beside text."""

    text: str
    data: bytes
    table: dict[str, list[bytes]]


@given(ANY_TEXT, st.binary(max_size=4), st.dictionaries(ANY_TEXT, st.lists(st.binary(max_size=4))))
def test_bytes_beside_such_text_stay_bytes(
    text: str, data: bytes, table: dict[str, list[bytes]]
) -> None:
    noted = Noted(text, data, table)
    assert decode_surrogates(encode_surrogates(noted), Noted) == noted


def test_what_is_written_as_such_text_is_checked_as_other_text_is() -> None:
    good = encode_surrogates(Watch(NOT_DECODED))
    for damaged in (good.replace(b"\xed", b"\xff"), good[:-1], good.replace(b"\1", b"\0")):
        with pytest.raises(FrameError, match="not a message of this protocol"):
            decode([(PROTOCOL << 24 | len(damaged)).to_bytes(HEAD, "big") + damaged])


@given(body=BODIES, buffers=BUFFERS)
def test_each_receiver_in_this_process_has_a_payload_of_its_own(
    body: bytes, buffers: list[bytes]
) -> None:
    payload = Payload(body, [*buffers, *map(bytearray, buffers)])
    first, second = payload.own(), payload.own()
    for buffer in first.buffers:
        if isinstance(buffer, bytearray):
            buffer[:] = bytes(len(buffer))
    first.drop()
    assert plain(first) == (b"", [])
    assert plain(second) == plain(payload) == (body, [*buffers, *buffers])


def test_a_small_message_is_one_frame() -> None:
    assert len(encode(CALL, Payload(b"x" * (SEGMENT_FROM - 1)))) == 1


def test_a_large_body_is_sent_as_it_stands_and_not_copied() -> None:
    body = b"x" * SEGMENT_FROM
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


OTHER_VERSIONS = [0, PROTOCOL + 1, 0x3F]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_another_protocol_version_is_refused_by_its_number(message: Message, version: int) -> None:
    frame = bytearray(encode(message)[0])
    frame[0] = version
    if isinstance(message, (Hello, Refused)):
        assert decode([frame])[0] == message  # or neither side could say how they differ
        return
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
    first, body = encode(CALL, Payload(b"x" * SEGMENT_FROM))
    for frames in ([first], [bytes(first) + b"x", body]):
        with pytest.raises(FrameError, match="should be a frame of its own"):
            decode(frames)


@pytest.mark.parametrize("message", [m for m in SAMPLES if not m.carries_payload])
@pytest.mark.parametrize("behind", [[], [b""], [b"body"], [b"", b"buffer"]], ids=str)
def test_no_message_without_a_payload_has_its_body_apart(
    message: Message, behind: list[Buffer]
) -> None:
    first = bytearray(encode(message)[0])
    first[0] |= 0x80
    with pytest.raises(FrameError, match="carries no payload"):
        decode([first, *behind])


def test_a_body_apart_may_be_empty_or_small_and_have_buffers() -> None:
    first = bytearray(encode(CALL)[0])
    first[0] |= 0x80
    for body, buffers in ((b"", []), (b"x", []), (b"", [b"buffer"])):
        message, payload = decode([first, body, *buffers])
        assert message == CALL
        assert plain(payload) == (body, buffers)


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
    with pytest.raises(FrameError, match="not a message of this protocol"):
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


def at_depth(calls: int, frames: list[Buffer]) -> Message:
    """Decode below that many calls of user code."""
    return decode(frames)[0] if calls == 0 else at_depth(calls - 1, frames)


def test_a_good_message_is_never_called_malformed_for_want_of_stack() -> None:
    frames = encode(SAMPLES[-1])
    outcomes: set[str] = set()
    for calls in range(sys.getrecursionlimit()):
        try:
            assert at_depth(calls, frames) == SAMPLES[-1]
        except RecursionError:
            outcomes.add("no stack left")
        else:
            outcomes.add("decoded")
    assert outcomes == {"decoded", "no stack left"}


@given(
    message=st.sampled_from(SAMPLES),
    payload=st.sampled_from([NO_PAYLOAD, Payload(b"body", [b"buffer"])]),
    edits=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=4),
    dropped=st.integers(0, 2),
)
@example(SAMPLES[1], NO_PAYLOAD, [(5, 34)], 0)  # odd text where a Reply has a number
def test_damaged_messages_raise_nothing_else(
    message: Message, payload: Payload, edits: list[tuple[int, int]], dropped: int
) -> None:
    frame, *rest = encode(message, payload)
    damaged = bytearray(frame)
    for at, value in edits:
        damaged[at % len(damaged)] = value
    decodes_or_refuses([damaged, *rest][: len(rest) + 1 - dropped])


# --- payloads in segments -------------------------------------------------------------------------

WHERE = InSegment(
    1, 77, 5, 4711, 99, 3, 1 << 20, 2, True, False, False, ((1 << 14, 70_000), (90_112, 8))
)


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 60_000], ids=len)
@pytest.mark.parametrize("message", [m for m in SAMPLES if m.carries_payload], ids=str)
def test_what_lies_in_a_segment_is_said_in_one_frame(message: Message, body: bytes) -> None:
    frames = encode(message, Payload(body, (WHERE,)))
    assert len(frames) == 1
    got, payload = decode(frames)
    assert got == message
    assert bytes(payload.body) == body
    assert apart_of(payload) == WHERE
    assert encode(got, payload) == frames, "who passes it on says the same"
    assert payload.wire_bytes == len(body)
    assert payload.nbytes == len(body) + 70_008


def test_a_message_cut_in_what_says_where_its_payload_is_is_refused() -> None:
    (frame,) = encode(CALL, Payload(b"", (WHERE,)))
    for size in range(len(frame)):
        with pytest.raises(FrameError):
            decode([frame[:size]])


@pytest.mark.parametrize("flags", [0x40, 0xC0])
@given(st.binary(max_size=40))
def test_anything_in_place_of_where_it_is_is_refused_or_read(flags: int, said: bytes) -> None:
    first = bytearray(encode(CALL)[0])
    first[0] |= flags
    try:
        decode([bytes(first + said)])
    except FrameError:
        pass


@pytest.mark.parametrize("spans", [((0, 8),), ((1 << 14, 1 << 20),), ((1 << 14, -1),)])
def test_parts_that_are_not_in_the_segment_are_not_sound(spans: tuple[tuple[int, int]]) -> None:
    assert WHERE.is_sound(1 << 14)
    assert not msgspec.structs.replace(WHERE, spans=spans).is_sound(1 << 14)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pid", 0), ("pid", 1 << 32), ("fd", -1), ("fd", 1 << 32), ("file", -1), ("file", 1 << 64),
        ("key", 1 << 62), ("capacity", 1 << 48), ("use", -1), ("use", 1 << 32), ("word", -1),
        ("word", 1 << 62),
    ],
)  # fmt: skip
def test_a_segment_that_no_request_could_name_is_not_sound(field: str, value: int) -> None:
    assert not msgspec.structs.replace(WHERE, **{field: value}).is_sound(1 << 14)


def test_loose_memory_is_copied_before_it_is_kept() -> None:
    scratch = bytearray(b"before")
    payload = Payload(b"x", [memoryview(scratch).toreadonly(), b"fixed"], [0])
    settled, own = payload.settled(), payload.own()
    scratch[:] = b"after!"
    for kept in (settled, own):
        assert [bytes(part) for part in buffers_of(kept)] == [b"before", b"fixed"]
        assert not kept.loose
