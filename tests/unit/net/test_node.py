"""Nodes meet, hear each other in order, and go."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch._src.net.local.waitable import Waitable
from monarch._src.net.node import Node
from monarch._src.net.peers import VERSIONS
from monarch._src.wire.frames import Payload, decode, encode
from monarch._src.wire.messages import OK, PROTOCOL, AnyMessage, Hello, MeshStopped, Reply
from tests.runtime_logs import RuntimeErrors
from tests.unit.net.pipe_end import Stranger
from tests.unit.net.received import PATIENCE_S, Heard, MakeNode, MakeStranger, numbered

# --- meeting --------------------------------------------------------------------------------------


def test_the_first_thing_said_on_a_link_is_hello(
    make_node: MakeNode, stranger: MakeStranger, sockets: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{sockets}/b")
        listener.listen()
        a = make_node("a", mesh=5, rank=2)
        a.link("b", f"ipc://{sockets}/b")
        a.send("b", numbered(1))
        pipe = Stranger(listener.accept()[0])
    with pipe.socket:
        name, hello, first = pipe.hear(), decode(pipe.hear())[0], decode(pipe.hear())[0]
    assert name == [b"a"], "and in front of it the name that the pipe is known by"
    assert isinstance(hello, Hello)
    assert (hello.node, hello.mesh, hello.rank, hello.address) == ("a", 5, 2, a.address)
    assert hello.versions == VERSIONS
    assert first == numbered(1)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By which calls this process writes to sockets from now on."""
    noted: list[str] = []

    def noting(name: str) -> None:
        real = getattr(socket.socket, name)

        def note(made: socket.socket, *args: Any) -> int:
            noted.append(name)
            return real(made, *args)

        monkeypatch.setattr(socket.socket, name, note)

    noting("send")
    noting("sendmsg")
    return noted


def test_who_connects_says_its_name_hello_and_all_that_waited_in_one_write(
    make_node: MakeNode, sockets: Path, writes: list[str]
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{sockets}/b")
        listener.listen()
        a = make_node("a")
        a.expect("b")
        assert all(a.send("b", numbered(number)) for number in range(3))
        assert not writes
        a.link("b", f"ipc://{sockets}/b")
        assert writes == ["sendmsg"]
        a.send("b", numbered(3))
        pipe = Stranger(listener.accept()[0])
    with pipe.socket:
        assert pipe.hear() == [b"a"]
        assert isinstance(decode(pipe.hear())[0], Hello)
        assert [decode(pipe.hear())[0] for _ in range(4)] == list(map(numbered, range(4)))


def test_what_waited_for_who_connects_to_us_leaves_in_one_write(
    make_node: MakeNode, stranger: MakeStranger, writes: list[str]
) -> None:
    a = make_node("a", start=False)
    a.expect("b")
    assert all(a.send("b", numbered(number)) for number in range(3))
    pipe = stranger(a.address, "b")
    pipe.say(encode(Hello(PROTOCOL, "b", "proc", 1, "", VERSIONS)))
    while not writes:
        a.router.wait(PATIENCE_S)
        a.drain()
    assert writes == ["sendmsg"]
    a.send("b", numbered(3))
    assert [decode(pipe.hear())[0] for _ in range(4)] == list(map(numbered, range(4)))


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


def test_the_same_for_many_reaches_those_that_are_there_or_come_and_tells_of_the_others(
    make_node: MakeNode,
) -> None:
    a = make_node("a")
    there, comes, gone = Heard(), Heard(), Heard()
    b, c, d = make_node("b", there), make_node("c", comes), make_node("d", gone)
    for node in (b, d):
        a.link(node.name, node.address)
    a.expect("c")
    a.forget("d")
    names = ["b", "nobody", "c", "d"]
    for number in range(3):
        assert a.send("b", numbered(2 * number))
        assert list(a.forward(names, numbered(2 * number + 1), Payload(b""))) == ["nobody", "d"]
    c.link("a", a.address)
    there.wait(b, 6)
    comes.wait(c, 3)
    assert [message for _, message, _ in there.answers] == [numbered(n) for n in range(6)]
    assert [message for _, message, _ in comes.answers] == [numbered(n) for n in (1, 3, 5)]
    assert not gone.answers


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
    friend.send("a", numbered(2))  # by which a wait finds that it has begun
    assert node.wait(over, None)
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


# --- a node that is found later, under another name -----------------------------------------------


@pytest.mark.parametrize("met_before", [False, True])
def test_what_waits_for_a_node_under_another_name_goes_out_in_order_when_it_is_found(
    make_node: MakeNode, sockets: Path, heard: Heard, met_before: bool
) -> None:
    a_heard = Heard()
    a, b = make_node("a", handle=a_heard), make_node("b.1", handle=heard)
    a.expect("b?")
    for number in (1, 2):
        assert a.send("b?", numbered(number))
    if met_before:
        b.link("a", f"ipc://{sockets}/a")
        b.send("a", numbered(9))
        a_heard.wait(a, 1)
    a.link_as("b?", "b.1", f"ipc://{sockets}/b.1")
    assert a.send("b?", numbered(3))
    assert a.send("b.1", numbered(4))
    heard.wait(b, 4)
    assert heard.numbers == [1, 2, 3, 4]
    a.forget("b.1")
    assert not a.send("b?", numbered(5)), "both names are of one node"


def test_one_that_is_not_wanted_any_more_is_not_linked(make_node: MakeNode, sockets: Path) -> None:
    a = make_node("a")
    a.link_as("b?", "b.1", f"ipc://{sockets}/b.1")
    a.expect("c?")
    a.forget("c?")
    a.link_as("c?", "c.1", f"ipc://{sockets}/c.1")
    assert not a.knows("b.1")
    assert not a.knows("c.1")
