"""Sockets of ZeroMQ are read when something has come, whatever has taken their word back."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from monarch._src.net.hosts.link_poll import LinkPoll, is_readable

NOW = int(zmq.NOBLOCK)
PATIENCE_S = 60.0


class Wire:
    """Two connected sockets, and what was read from one of them."""

    def __init__(self, context: zmq.Context[Any], name: str) -> None:
        self.here = context.socket(zmq.PAIR)
        self.there = context.socket(zmq.PAIR)
        self.here.bind(f"inproc://{name}")
        self.there.connect(f"inproc://{name}")
        self.came: list[bytes] = []

    def read_all(self) -> bool:
        while is_readable(self.here):
            self.came.append(self.here.recv(NOW))
        return False

    def read_one(self) -> bool:
        if is_readable(self.here):
            self.came.append(self.here.recv(NOW))
        return is_readable(self.here)


@pytest.fixture
def poll() -> Iterator[LinkPoll]:
    found = LinkPoll()
    yield found
    found.close()


@pytest.fixture
def wire(poll: LinkPoll) -> Iterator[Callable[[str], Wire]]:
    """Makes wires; those that are looked after are so no more in the end."""
    context: zmq.Context[Any] = zmq.Context()
    made: list[Wire] = []

    def make(name: str) -> Wire:
        made.append(Wire(context, name))
        return made[-1]

    yield make
    for one in made:
        if one.here in poll.sockets:
            poll.remove(one.here)
        one.here.close(0)
        one.there.close(0)
    context.term()


def is_told(poll: LinkPoll) -> bool:
    """Whether its descriptor says that there is something."""
    return bool(select.select([poll.fileno()], [], [], 0)[0])


def quiet(poll: LinkPoll) -> None:
    """Nothing has come, and nothing says so."""
    while poll.receive() or is_told(poll):
        pass


def test_what_comes_is_told_by_the_descriptor_and_read(
    poll: LinkPoll, wire: Callable[[str], Wire]
) -> None:
    one, other = wire("one"), wire("other")
    poll.add(one.here, one.read_all)
    poll.add(other.here, other.read_all)
    quiet(poll)
    other.there.send(b"a")
    poll.wait(PATIENCE_S)
    assert not poll.receive()
    assert (one.came, other.came) == ([], [b"a"])


def test_what_had_come_before_a_socket_was_looked_after_is_read(
    poll: LinkPoll, wire: Callable[[str], Wire]
) -> None:
    one = wire("one")
    one.there.send(b"early")
    assert is_readable(one.here)  # which takes back what the descriptor says
    poll.add(one.here, one.read_all)
    assert poll.missed
    poll.receive()
    assert one.came == [b"early"]


def test_what_a_send_has_taken_the_word_back_of_is_read(
    poll: LinkPoll, wire: Callable[[str], Wire]
) -> None:
    one = wire("one")
    poll.add(one.here, one.read_all)
    quiet(poll)
    one.there.send(b"a")
    one.here.send(b"b")
    assert is_readable(one.here)
    assert not is_told(poll)
    poll.used(one.here)
    assert poll.missed
    assert not poll.receive()
    assert one.came == [b"a"]
    assert not poll.missed


def test_who_reads_only_some_is_asked_again(poll: LinkPoll, wire: Callable[[str], Wire]) -> None:
    one = wire("one")
    poll.add(one.here, one.read_one)
    for data in (b"a", b"b", b"c"):
        one.there.send(data)
    assert [poll.receive(), poll.receive(), poll.receive()] == [True, True, False]
    assert one.came == [b"a", b"b", b"c"]


def test_reading_that_raises_leaves_nothing_unread(
    poll: LinkPoll, wire: Callable[[str], Wire]
) -> None:
    bad, good = wire("bad"), wire("good")

    def fails() -> bool:
        if not bad.came:
            bad.came.append(bad.here.recv(NOW))
            raise RuntimeError("one message")
        return bad.read_all()

    poll.add(bad.here, fails, first=True)
    poll.add(good.here, good.read_all)
    for data in (b"a", b"b"):
        bad.there.send(data)
        good.there.send(data)
    with pytest.raises(RuntimeError, match="one message"):
        poll.receive()
    assert poll.missed
    assert not poll.receive()
    assert (bad.came, good.came) == ([b"a", b"b"], [b"a", b"b"])


def test_those_that_are_first_are_read_before_the_others(
    poll: LinkPoll, wire: Callable[[str], Wire]
) -> None:
    order: list[str] = []
    for name in ("a", "b", "monitor", "c"):
        one = wire(name)

        def read(one: Wire = one, name: str = name) -> bool:
            order.append(name)
            return one.read_all()

        poll.add(one.here, read, first=name == "monitor")
        one.there.send(b"x")
    poll.receive()
    assert order[0] == "monitor"
    assert sorted(order) == ["a", "b", "c", "monitor"]


def test_one_that_another_has_ended_is_not_read(
    poll: LinkPoll, wire: Callable[[str], Wire]
) -> None:
    one, ended = wire("one"), wire("ended")

    def end_it() -> bool:
        if ended.here in poll.sockets:
            poll.remove(ended.here)
        return one.read_all()

    poll.add(one.here, end_it, first=True)
    poll.add(ended.here, ended.read_all)
    ended.there.send(b"x")
    assert not poll.receive()
    assert ended.came == []


def test_a_wait_can_be_woken_and_a_wake_up_is_told_once(poll: LinkPoll) -> None:
    poll.wake()
    poll.wake()
    poll.wait(PATIENCE_S)
    poll.receive()
    assert not is_told(poll)
