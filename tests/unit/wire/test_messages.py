"""Every message there is, found by looking, travels unchanged."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._src.wire import messages
from monarch._src.wire.frames import decode, encode
from monarch._src.wire.messages import AnyMessage, Hello, Message
from tests.unit.wire.drawn import EXAMPLES, of_type

ARRIVING: tuple[type[Message], ...] = typing.get_args(AnyMessage)
DEFINED = [
    found
    for found in vars(messages).values()
    if isinstance(found, type) and issubclass(found, Message) and found is not Message
]
INSIDE_OTHERS = {
    messages.RankState,
    messages.MeshState,
    messages.KeptMesh,
    messages.KeptWorker,
}


def tag_of(cls: type[Message]) -> Any:
    return msgspec.inspect.type_info(cls).tag  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", ARRIVING, ids=lambda cls: cls.__name__)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_message_arrives_as_it_was_sent(cls: type[Message], data: st.DataObject) -> None:
    sent = data.draw(of_type(cls))
    received, payload = decode(encode(sent))
    assert type(received) is cls
    assert received == sent
    assert payload.nbytes == 0


def test_every_message_may_arrive_unless_it_only_stands_inside_others() -> None:
    assert set(DEFINED) - INSIDE_OTHERS == set(ARRIVING)


def test_no_two_messages_share_a_tag() -> None:
    tags = [tag_of(cls) for cls in DEFINED]
    assert len(set(tags)) == len(tags)
    assert all(isinstance(tag, int) and tag > 0 for tag in tags)


@pytest.mark.parametrize("cls", ARRIVING, ids=lambda cls: cls.__name__)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_field_that_a_later_version_adds_at_the_end_is_passed_over(
    cls: type[Message], data: st.DataObject
) -> None:
    sent = data.draw(of_type(cls))
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(msgspec.msgpack.encode(sent)), "new"])
    assert msgspec.msgpack.decode(later, type=AnyMessage) == sent


def test_a_field_with_a_default_may_be_missing_at_the_end() -> None:
    hello = Hello(1, "client", "client", 7, "ipc:///x", {"python": "3.11.7"})
    earlier = msgspec.msgpack.decode(msgspec.msgpack.encode(hello))[:-2]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(earlier), type=AnyMessage) == hello


def test_a_head_is_a_bare_array_of_tag_and_fields() -> None:
    stopped = messages.MeshStopped(5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stopped)) == [21, 5]


def test_only_what_users_pass_travels_as_a_payload() -> None:
    carriers = {cls for cls in ARRIVING if cls.carries_payload}
    assert carriers == {
        messages.SpawnActor, messages.Call, messages.Reply, messages.Bootstrap, messages.Cast,
        messages.CastTree, messages.TreeDone, messages.Answer, messages.Answers,
        messages.KeptActors, messages.PayloadSent, messages.PayloadPart, messages.TunnelBytes,
        messages.Relay,  # the frames of one of these, or of a message without
    }  # fmt: skip


@pytest.mark.parametrize("cls", DEFINED, ids=lambda cls: cls.__name__)
def test_annotations_of_a_message_are_no_text_that_each_process_would_compile(
    cls: type[Message],
) -> None:
    assert all(not isinstance(field, str) for field in cls.__annotations__.values())
