"""Every message there is, found by looking, travels unchanged."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from monarch._src.wire import messages
from monarch._src.wire.frames import decode, encode
from monarch._src.wire.messages import AnyMessage, Hello, Message

ARRIVING: tuple[type[Message], ...] = typing.get_args(AnyMessage)
DEFINED = [
    found
    for found in vars(messages).values()
    if isinstance(found, type) and issubclass(found, Message) and found is not Message
]
INSIDE_OTHERS = {messages.RankState, messages.MeshState}

ATOMS: dict[Any, SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(),
    bool: st.booleans(),
    type(None): st.none(),
}


def values(annotation: Any) -> SearchStrategy[Any]:
    """Anything that a field of that type may hold."""
    if annotation in ATOMS:
        return ATOMS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=4)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if arguments:  # a union
        return st.one_of(*map(values, arguments))
    return records(annotation)


def records(cls: type) -> SearchStrategy[Any]:
    """Any instance of a message, or of a dataclass inside one."""
    hints = typing.get_type_hints(cls)
    if dataclasses.is_dataclass(cls):
        names = [f.name for f in dataclasses.fields(cls)]
    else:
        names = list(cls.__struct_fields__)  # type: ignore[attr-defined]
    return st.builds(cls, **{name: values(hints[name]) for name in names})


def tag_of(cls: type[Message]) -> Any:
    return msgspec.inspect.type_info(cls).tag  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", ARRIVING, ids=lambda cls: cls.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_a_message_arrives_as_it_was_sent(cls: type[Message], data: st.DataObject) -> None:
    sent = data.draw(records(cls))
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
@settings(max_examples=30)
@given(data=st.data())
def test_a_field_that_a_later_version_adds_at_the_end_is_passed_over(
    cls: type[Message], data: st.DataObject
) -> None:
    sent = data.draw(records(cls))
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
        messages.Answer, messages.Answers,
    }  # fmt: skip
