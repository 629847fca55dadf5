"""Who is not heard by a node, and what is said to those and of them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from monarch._src.net.peers import VERSIONS
from monarch._src.wire.frames import decode, encode
from monarch._src.wire.messages import PROTOCOL, Hello, Refused
from tests.runtime_logs import RuntimeErrors
from tests.unit.net.received import Heard, MakeNode, MakeStranger, numbered

FLOOD = 5000  # whose answers are more than any system holds for a socket


def test_who_said_no_hello_is_not_heard_but_counted(
    make_node: MakeNode, stranger: MakeStranger, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node("a", heard)
    pipe = stranger(node.address, "stranger")
    pipe.say(encode(numbered(1)))
    with caplog.at_level(logging.WARNING, "monarch.net"):
        pipe.say(encode(numbered(2)))
        hello = Hello(PROTOCOL, "stranger", "proc", 1, "", VERSIONS)
        pipe.say(encode(hello))
        pipe.say(encode(numbered(3)))
        heard.wait(node, 1)
    assert heard.numbers == [3]
    assert node.dropped == 2
    assert "dropped a OutputFlushed from b'stranger', which said no hello" in caplog.text


def test_what_is_malformed_is_dropped_and_counted_and_the_rest_is_heard(
    make_node: MakeNode, stranger: MakeStranger, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node("a", heard)
    peer = stranger(node.address, "b")
    hello = Hello(PROTOCOL, "b", "proc", 1, "", VERSIONS)
    good, bad = [encode(hello), encode(numbered(1))], [[b""], [b"\xff" * 50], [b"\x01\0\0\0"]]
    with caplog.at_level(logging.WARNING, "monarch.net"):
        for frames in [*bad, good[0], *bad, good[1]]:
            peer.say(frames)
        heard.wait(node, 1)
    assert heard.numbers == [1]
    assert node.dropped == 6
    assert caplog.text.count("dropped a malformed message from b'b'") == 6


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"protocol": PROTOCOL + 1}, f"protocol   {PROTOCOL!s:9} {PROTOCOL + 1!s:9} <-- differs"),
        ({"monarch": "0.0.0"}, f"monarch    {VERSIONS['monarch']:9} 0.0.0     <-- differs"),
        ({"python": "2.7.18"}, f"python     {VERSIONS['python']:9} 2.7.18    <-- differs"),
        ({"python": None}, f"python     {VERSIONS['python']:9} ?         <-- differs"),
    ],
)
def test_a_peer_of_another_version_is_refused_with_a_table_of_both(
    make_node: MakeNode, stranger: MakeStranger, heard: Heard, runtime_errors: RuntimeErrors,
    changes: dict[str, Any], row: str,
) -> None:  # fmt: skip
    node = make_node("a", heard)
    peer = stranger(node.address, "b")
    protocol = changes.pop("protocol", PROTOCOL)
    theirs = {k: v for k, v in (VERSIONS | changes).items() if v is not None}
    for message in (Hello(protocol, "b", "proc", 77, "", theirs), numbered(1)):
        frames = [bytearray(frame) for frame in encode(message)]
        frames[0][0] = protocol
        peer.say(frames)
    refused, _ = decode(peer.hear())
    assert isinstance(refused, Refused)
    lines = refused.why.splitlines()
    assert lines[:2] == ["b (pid 77) speaks another version:", "           here      there"]
    assert row in lines
    assert sum("differs" in line for line in lines) == 1
    assert f"refused b: {refused.why}" in runtime_errors.take()[0]
    assert heard.messages == []


def test_another_patch_release_of_python_is_no_other_version(
    make_node: MakeNode, stranger: MakeStranger, heard: Heard
) -> None:
    node = make_node("a", heard)
    peer = stranger(node.address, "b")
    python = ".".join(VERSIONS["python"].split(".")[:2]) + ".99"
    hello = Hello(PROTOCOL, "b", "proc", 1, "", VERSIONS | {"python": python})
    for message in (hello, numbered(1)):
        peer.say(encode(message))
    heard.wait(node, 1)


def test_who_is_refused_on_and_on_and_does_not_read_why_is_not_told_without_end(
    make_node: MakeNode, stranger: MakeStranger, heard: Heard, runtime_errors: RuntimeErrors
) -> None:
    node = make_node("a", heard)
    peer = stranger(node.address, "b")
    wrong, hello = (Hello(number, "b", "proc", 77, "", VERSIONS) for number in (0, PROTOCOL))
    for _ in range(FLOOD):
        peer.say(encode(wrong))
    for message in (hello, numbered(1)):
        peer.say(encode(message))
    heard.wait(node, 1)
    node.send("b", numbered(2))
    told = 0
    while isinstance(decode(peer.hear())[0], Refused):
        told += 1
    assert 0 < told < FLOOD
    assert 0 < len(runtime_errors.take()) < 40


def test_one_that_is_refused_is_told_why(
    make_node: MakeNode, heard: Heard, runtime_errors: RuntimeErrors
) -> None:
    a, b = make_node("a", heard), make_node("b")
    a._hello.versions = VERSIONS | {"monarch": "0.0.0"}
    a.link("b", b.address)
    heard.wait(a, 1)
    ((peer, refused, _),) = heard.answers
    assert peer == "b"
    assert isinstance(refused, Refused)
    assert runtime_errors.take()


def test_nobody_can_take_the_name_of_another(
    make_node: MakeNode, stranger: MakeStranger, heard: Heard, runtime_errors: RuntimeErrors
) -> None:
    node, friend = make_node("a", heard), make_node("friend")
    friend.link("a", node.address)
    friend.send("a", numbered(1))
    heard.wait(node, 1)
    impostor = stranger(node.address, "impostor")
    hello = Hello(PROTOCOL, "friend", "proc", 1, "", VERSIONS)
    for message in (hello, numbered(666)):
        impostor.say(encode(message))
    hello = Hello(PROTOCOL, "impostor", "proc", 1, "", VERSIONS)
    for message in (hello, numbered(2)):
        impostor.say(encode(message))
    heard.wait(node, 2)
    assert heard.numbers == [1, 2]
    assert "refused b'impostor', which calls itself friend" in runtime_errors.take()[0]
