"""Nodes: who has said hello is heard, in order, and nobody else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from monarch._src.net import node as node_module
from monarch._src.net.baton import Waitable
from monarch._src.net.node import Node, versions
from monarch._src.wire.frames import Payload, decode, encode
from monarch._src.wire.messages import (
    OK,
    PROTOCOL,
    AnyMessage,
    Hello,
    MeshStopped,
    OutputFlushed,
    Refused,
    Reply,
)
from tests.said import RuntimeErrors

PATIENCE_S = 60.0
MakeNode = Callable[..., Node]
BareSocket = Callable[..., "zmq.Socket[bytes]"]


class Heard:
    """What a node was told: (peer, message, body), and waits until enough was."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, AnyMessage, bytes]] = []
        self._wanted: tuple[int, Waitable] = (0, Waitable())

    def __call__(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        self.messages.append((peer, message, bytes(payload.body)))
        count, what = self._wanted
        if self.count == count:
            what.finish()

    @property
    def answers(self) -> list[tuple[str, AnyMessage, bytes]]:
        """Without greetings."""
        return [m for m in self.messages if not isinstance(m[1], Hello)]

    @property
    def numbers(self) -> list[int]:
        """The numbers of all numbered messages, in the order in which they came."""
        return [m.request for _, m, _ in self.messages if isinstance(m, OutputFlushed)]

    @property
    def count(self) -> int:
        """How many came, without greetings."""
        return len(self.answers)

    def wait(self, node: Node, count: int) -> None:
        """Return when `count` messages have come in all."""
        self._wanted = count, Waitable()
        if self.count < count:
            assert node.wait(self._wanted[1], PATIENCE_S)


def numbered(number: int) -> OutputFlushed:
    return OutputFlushed(number)


@pytest.fixture
def heard() -> Heard:
    return Heard()


# --- meeting --------------------------------------------------------------------------------------


def test_the_first_thing_said_on_a_link_is_hello(
    make_node: MakeNode, bare_socket: BareSocket, sockets: Path
) -> None:
    listener = bare_socket(zmq.ROUTER)
    listener.bind(f"ipc://{sockets}/b")
    a = make_node("a", mesh=5, rank=2)
    a.link("b", f"ipc://{sockets}/b")
    a.send("b", numbered(1))
    route, *frames = listener.recv_multipart()
    hello, _ = decode(frames)
    assert route == b"a"
    assert isinstance(hello, Hello)
    assert (hello.node, hello.mesh, hello.rank, hello.address) == ("a", 5, 2, a.address)
    assert hello.versions == versions()
    assert decode(listener.recv_multipart()[1:])[0] == numbered(1)


def test_messages_go_both_ways_over_one_link(
    make_node: MakeNode, sockets: Path, heard: Heard
) -> None:
    a_heard = Heard()
    a, b = make_node("a", a_heard), make_node("b", heard)
    a.link("b", b.address)
    a.send("b", Reply(1, 2, OK), Payload(b"value"))
    heard.wait(b, 1)
    assert heard.answers == [("a", Reply(1, 2, OK), b"value")]
    assert b.knows("a")
    assert b.address_of("a") == a.address
    assert b.send("a", numbered(7))
    a_heard.wait(a, 1)
    assert a_heard.answers == [("b", numbered(7), b"")]


def test_a_second_link_to_the_same_node_is_the_first(make_node: MakeNode, heard: Heard) -> None:
    a, b = make_node("a"), make_node("b", heard)
    for _ in range(3):
        a.link("b", b.address)
    a.send("b", numbered(1))
    heard.wait(b, 1)
    assert len(heard.messages) == 2, "one hello and one message"


def test_a_node_that_is_expected_gets_what_was_sent_before_it_came(
    make_node: MakeNode, heard: Heard
) -> None:
    a, b = make_node("a"), make_node("b", heard)
    a.expect("b")
    for number in range(3):
        assert a.send("b", numbered(number))
    b.link("a", a.address)
    heard.wait(b, 3)
    assert heard.numbers == [0, 1, 2]


def test_nodes_that_link_to_each_other_at_once_lose_nothing(
    make_node: MakeNode, sockets: Path
) -> None:
    for round_ in range(30):
        names = f"a{round_}", f"b{round_}"
        heard = Heard(), Heard()
        nodes = make_node(names[0], heard[0]), make_node(names[1], heard[1])
        start = threading.Barrier(2)

        def meet(
            me: int, nodes: tuple[Node, Node] = nodes, names: tuple[str, str] = names,
            start: threading.Barrier = start,
        ) -> None:  # fmt: skip
            start.wait(timeout=PATIENCE_S)
            nodes[me].link(names[1 - me], nodes[1 - me].address)
            for number in range(10):
                assert nodes[me].send(names[1 - me], numbered(number))

        threads = [threading.Thread(target=meet, args=(me,)) for me in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=PATIENCE_S)
        for me in (0, 1):
            heard[me].wait(nodes[me], 10)
            assert heard[me].numbers == list(range(10))
        for node in nodes:  # only now: what was not sent yet would be lost
            node.close()


def test_an_answer_that_comes_at_once_finds_the_link_known(make_node: MakeNode) -> None:
    """The peer answers a hello before the one who said it has returned from `link`."""
    for round_ in range(30):
        heard = Heard()
        name = f"b{round_}"

        def answer(peer: str, message: AnyMessage, payload: Payload) -> None:
            b.send(peer, numbered(0))  # noqa: B023

        a, b = make_node(f"a{round_}", heard), make_node(name, answer)
        a.link(name, b.address)
        heard.wait(a, 1)
        assert a.dropped == 0
        a.close()
        b.close()


# --- who is not heard -----------------------------------------------------------------------------


def test_who_said_no_hello_is_not_heard_but_counted(
    make_node: MakeNode, bare_socket: BareSocket, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node("a", heard)
    stranger = bare_socket(zmq.DEALER, "stranger")
    stranger.connect(node.address)
    stranger.send_multipart([bytes(f) for f in encode(numbered(1))])
    with caplog.at_level(logging.WARNING, "monarch.net"):
        stranger.send_multipart([bytes(f) for f in encode(numbered(2))])
        hello = Hello(PROTOCOL, "stranger", "proc", 1, "", versions())
        stranger.send_multipart([bytes(f) for f in encode(hello)])
        stranger.send_multipart([bytes(f) for f in encode(numbered(3))])
        heard.wait(node, 1)
    assert heard.numbers == [3]
    assert node.dropped == 2
    assert "dropped a OutputFlushed from b'stranger', which said no hello" in caplog.text


def test_what_is_malformed_is_dropped_and_counted_and_the_rest_is_heard(
    make_node: MakeNode, bare_socket: BareSocket, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node("a", heard)
    peer = bare_socket(zmq.DEALER, "b")
    peer.connect(node.address)
    hello = Hello(PROTOCOL, "b", "proc", 1, "", versions())
    good, bad = [encode(hello), encode(numbered(1))], [[b""], [b"\xff" * 50], [b"\x01\0\0\0"]]
    with caplog.at_level(logging.WARNING, "monarch.net"):
        for frames in [*bad, good[0], *bad, good[1]]:
            peer.send_multipart([bytes(f) for f in frames])
        heard.wait(node, 1)
    assert heard.numbers == [1]
    assert node.dropped == 6
    assert caplog.text.count("dropped a malformed message from b'b'") == 6


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"protocol": PROTOCOL + 1}, f"protocol   {PROTOCOL!s:9} {PROTOCOL + 1!s:9} <-- differs"),
        ({"monarch": "0.0.0"}, f"monarch    {versions()['monarch']:9} 0.0.0     <-- differs"),
        ({"python": "2.7.18"}, f"python     {versions()['python']:9} 2.7.18    <-- differs"),
        ({"python": None}, f"python     {versions()['python']:9} ?         <-- differs"),
    ],
)
def test_a_peer_of_another_version_is_refused_with_a_table_of_both(
    make_node: MakeNode, bare_socket: BareSocket, heard: Heard, runtime_errors: RuntimeErrors,
    changes: dict[str, Any], row: str,
) -> None:  # fmt: skip
    node = make_node("a", heard)
    peer = bare_socket(zmq.DEALER, "b")
    peer.connect(node.address)
    protocol = changes.pop("protocol", PROTOCOL)
    theirs = {k: v for k, v in (versions() | changes).items() if v is not None}
    for message in (Hello(protocol, "b", "proc", 77, "", theirs), numbered(1)):
        peer.send_multipart([bytes(f) for f in encode(message)])
    refused, _ = decode(peer.recv_multipart())
    assert isinstance(refused, Refused)
    lines = refused.why.splitlines()
    assert lines[:2] == ["b (pid 77) speaks another version:", "           here      there"]
    assert row in lines
    assert sum("differs" in line for line in lines) == 1
    assert f"refused b: {refused.why}" in runtime_errors.take()[0]
    assert heard.messages == []


def test_another_patch_release_of_python_is_no_other_version(
    make_node: MakeNode, bare_socket: BareSocket, heard: Heard
) -> None:
    node = make_node("a", heard)
    peer = bare_socket(zmq.DEALER, "b")
    peer.connect(node.address)
    python = ".".join(versions()["python"].split(".")[:2]) + ".99"
    hello = Hello(PROTOCOL, "b", "proc", 1, "", versions() | {"python": python})
    for message in (hello, numbered(1)):
        peer.send_multipart([bytes(f) for f in encode(message)])
    heard.wait(node, 1)


def test_one_that_is_refused_is_told_why(
    make_node: MakeNode, heard: Heard, runtime_errors: RuntimeErrors,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    a, b = make_node("a", heard), make_node("b")
    with monkeypatch.context() as patch:
        patch.setattr(node_module, "versions", lambda: versions() | {"monarch": "0.0.0"})
        a.link("b", b.address)
    heard.wait(a, 1)
    ((peer, refused, _),) = heard.answers
    assert peer == "b"
    assert isinstance(refused, Refused)
    assert runtime_errors.take()


def test_nobody_can_take_the_name_of_another(
    make_node: MakeNode, bare_socket: BareSocket, heard: Heard, runtime_errors: RuntimeErrors
) -> None:
    node, friend = make_node("a", heard), make_node("friend")
    friend.link("a", node.address)
    friend.send("a", numbered(1))
    heard.wait(node, 1)
    impostor = bare_socket(zmq.DEALER, "impostor")
    impostor.connect(node.address)
    hello = Hello(PROTOCOL, "friend", "proc", 1, "", versions())
    for message in (hello, numbered(666)):
        impostor.send_multipart([bytes(f) for f in encode(message)])
    hello = Hello(PROTOCOL, "impostor", "proc", 1, "", versions())
    for message in (hello, numbered(2)):
        impostor.send_multipart([bytes(f) for f in encode(message)])
    heard.wait(node, 2)
    assert heard.numbers == [1, 2]
    assert "refused b'impostor', which calls itself friend" in runtime_errors.take()[0]


# --- order ----------------------------------------------------------------------------------------


def test_the_order_of_one_sender_holds_while_its_peer_comes(make_node: MakeNode) -> None:
    for round_ in range(30):
        heard = Heard()
        a, b = make_node(f"a{round_}"), make_node(f"b{round_}", heard)
        a.expect(b.name)
        begun = threading.Event()

        def sends(a: Node = a, b: Node = b, begun: threading.Event = begun) -> None:
            for number in range(200):
                assert a.send(b.name, numbered(number))
                if number == 50:
                    begun.set()

        sender = threading.Thread(target=sends)
        sender.start()
        assert begun.wait(timeout=PATIENCE_S)
        b.link(a.name, a.address)
        sender.join(timeout=PATIENCE_S)
        heard.wait(b, 200)
        assert heard.numbers == list(range(200))
        a.close()
        b.close()


def test_the_order_of_each_sending_thread_holds(make_node: MakeNode, heard: Heard) -> None:
    a, b = make_node("a"), make_node("b", heard)
    a.link("b", b.address)
    threads, count = 4, 500

    def sends(first: int) -> None:
        for number in range(first, first + count):
            assert a.send("b", numbered(number))

    running = [threading.Thread(target=sends, args=(i * 1000,)) for i in range(threads)]
    for thread in running:
        thread.start()
    heard.wait(b, threads * count)
    for thread in running:
        thread.join(timeout=PATIENCE_S)
    for i in range(threads):
        mine = [number for number in heard.numbers if number // 1000 == i]
        assert mine == list(range(i * 1000, i * 1000 + count))


def test_messages_to_oneself_come_in_order_and_are_no_aliases(
    make_node: MakeNode, heard: Heard
) -> None:
    buffers: list[Any] = []

    def keep(peer: str, message: AnyMessage, payload: Payload) -> None:
        buffers.extend(payload.buffers)
        heard(peer, message, payload)

    node = make_node("a", keep)
    data = bytearray(b"data")
    for number in range(100):
        assert node.send("a", numbered(number))
    assert node.send("a", Reply(1, 0, OK), Payload(b"x", [data]))
    data[:] = b"gone"
    heard.wait(node, 101)
    assert heard.numbers == list(range(100))
    assert bytes(buffers[0]) == b"data"
    assert node.knows("a")


def test_a_flood_does_not_keep_a_thread_whose_wait_is_over(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, after = Waitable(), list[int]()
    node = make_node(
        "a", lambda peer, message, payload: over.finish(), start=False,
        after_drain=lambda: bool(after.append(1)),
    )  # fmt: skip
    friend = make_node("b")
    friend.link("a", node.address)
    assert not node.wait(Waitable(), 0.0)
    friend.send("a", numbered(1))
    assert node.wait(over, PATIENCE_S)
    after.clear()
    over.done = False
    flood = [b"b", *encode(numbered(2))]
    monkeypatch.setattr(node.router, "receive", lambda: list(flood))  # it never ends
    assert node.wait(over)
    assert after == [], "not all was read, so nothing follows from that"
    monkeypatch.undo()


# --- going ----------------------------------------------------------------------------------------


def test_a_node_nobody_knows_is_sent_nothing(make_node: MakeNode) -> None:
    node = make_node("a")
    assert not node.send("b", numbered(1))
    assert not node.knows("b")
    assert node.address_of("b") == ""
    node.forget("b")
    node.drop("b")


def test_a_node_that_is_gone_is_sent_nothing_and_what_waits_is_dropped(
    make_node: MakeNode, heard: Heard
) -> None:
    a, b = make_node("a"), make_node("b", heard)
    a.expect("b")
    a.send("b", numbered(1))
    a.forget("b")
    a.forget("b")
    assert not a.send("b", numbered(2))
    assert not a.knows("b")
    a.link("b", b.address)
    assert not a.send("b", numbered(3)), "gone is gone"


def test_the_last_words_of_a_node_that_is_gone_are_heard(make_node: MakeNode, heard: Heard) -> None:
    a, b = make_node("a", heard), make_node("b")
    b.link("a", a.address)
    b.send("a", numbered(1))
    heard.wait(a, 1)
    a.forget("b")
    b.send("a", numbered(2))
    heard.wait(a, 2)
    assert heard.numbers == [1, 2]


def test_a_node_that_was_dropped_may_come_again(make_node: MakeNode) -> None:
    a = make_node("a")
    for round_ in range(3):
        heard = Heard()
        b = make_node("b", heard)
        a.link("b", b.address)
        assert a.send("b", numbered(round_))
        heard.wait(b, 1)
        assert heard.numbers == [round_]
        a.drop("b")
        assert not a.knows("b")
        b.close()


# --- handlers -------------------------------------------------------------------------------------


def test_a_handler_that_raises_is_said_and_the_next_message_is_heard(
    make_node: MakeNode, heard: Heard, runtime_errors: RuntimeErrors
) -> None:
    def raises(peer: str, message: AnyMessage, payload: Payload) -> None:
        heard(peer, message, payload)
        if message == numbered(1):
            raise ValueError("in the handler")

    node = make_node("a", raises)
    node.send("a", numbered(1))
    node.send("a", numbered(2))
    heard.wait(node, 2)
    (said,) = runtime_errors.take()
    assert "handling a OutputFlushed from a failed" in said
    assert "in the handler" in said


def test_what_follows_a_drain_comes_after_all_that_could_be_read(make_node: MakeNode) -> None:
    story, done = list[str](), Waitable()

    def handle(peer: str, message: AnyMessage, payload: Payload) -> None:
        story.append(type(message).__name__)
        if message == MeshStopped(3):
            done.finish()

    def after() -> bool:
        if story and story[-1] != "after":
            story.append("after")
        return False

    node = make_node("a", handle, after_drain=after, start=False)
    for message in (MeshStopped(1), MeshStopped(2), MeshStopped(3)):
        node.send("a", message)
    assert node.wait(done, PATIENCE_S)
    assert story == ["MeshStopped"] * 3 + ["after"]
