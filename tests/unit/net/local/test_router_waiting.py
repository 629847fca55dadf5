"""Many pipes, many threads, one receiver: nothing is slept beside, and a fork has none of it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch._src.net.local.poll import new_poll
from monarch._src.net.local.router import Router
from monarch._src.wire.memory_copies import CHEAP
from monarch._src.wire.segment_refs import SEGMENT_FROM
from tests.unit.net.routers import PATIENCE_S, MakeRouter, led, received

pytestmark = pytest.mark.usefixtures("polling")

# --- waiting --------------------------------------------------------------------------------------


def test_waking_before_the_wait_ends_the_wait(make_router: MakeRouter) -> None:
    router = make_router("a")
    for _ in range(3):
        router.wake()
    assert router.wait(PATIENCE_S) == []
    assert router.wait(0.0) == [], "three calls that came at once are one"


def test_looking_does_not_take_a_wake_up_from_who_waits_next(make_router: MakeRouter) -> None:
    router = make_router("a")
    router.wake()
    assert not router.readable()
    assert router.receive() is None
    assert router.wait(PATIENCE_S) == []


def test_a_wake_up_that_a_wait_has_found_is_there_for_the_next_until_it_is_taken(
    make_router: MakeRouter,
) -> None:
    router = make_router("a")
    router.wake()
    for _ in range(3):  # each of these threads may leave before it has looked what for
        assert router.wait(PATIENCE_S) == []
        assert select.select([router.fd], [], [], 0.0)[0]
    router.clear_wake_ups()
    assert router.receive() is None
    assert not select.select([router.fd], [], [], 0.0)[0]


def test_who_has_just_waited_does_not_look_again_and_misses_nothing(
    pair: tuple[Router, Router],
) -> None:
    a, b = pair
    a.send(b">b", [b"one"])
    assert received(b) == [b"a", b"one"]
    assert b.wait(0.0) == []
    a.send(b">b", [b"two"])
    assert b.receive() is None
    assert b.wait(PATIENCE_S) == []
    assert received(b) == [b"a", b"two"]


def test_waking_from_another_thread_ends_the_wait(make_router: MakeRouter) -> None:
    router = make_router("a")
    rounds = 1000
    woken, proceed = threading.Semaphore(0), threading.Semaphore(0)

    def waits() -> None:
        for _ in range(rounds):
            router.wait(None)
            woken.release()
            assert proceed.acquire(timeout=PATIENCE_S)

    thread = threading.Thread(target=waits)
    thread.start()
    for _ in range(rounds):
        router.wake()
        assert woken.acquire(timeout=PATIENCE_S)
        proceed.release()
    thread.join(timeout=PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture
def pipe_ends() -> Iterator[tuple[int, int]]:
    """A pipe of the system, the reading end first."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def test_a_descriptor_that_is_watched_is_told(
    make_router: MakeRouter, pipe_ends: tuple[int, int]
) -> None:
    router, (reader, writer) = make_router("a"), pipe_ends
    router.watch(reader)
    os.write(writer, b"x")
    assert not router.readable()
    assert [fd for fd, _ in router.wait(PATIENCE_S)] == [reader]
    router.unwatch(reader)
    router.unwatch(reader)
    assert router.wait(0.0) == []


def test_what_is_waited_for_elsewhere_is_found_there_too(
    pair: tuple[Router, Router],
) -> None:
    a, b = pair
    a.readable()
    poll = new_poll()
    poll.register(b.fd, 1)
    while b.readable() or poll.poll(0):
        b.receive()
    a.send(b">b", [b"message"])
    assert [fd for fd, _ in poll.poll(PATIENCE_S)] == [b.fd]
    assert received(b) == [b"a", b"message"]
    assert poll.poll(0) == []
    poll.close()


def test_no_message_is_slept_beside_while_other_threads_send(
    pair: tuple[Router, Router],
) -> None:
    a, b = pair
    rounds, senders = 500, 3

    def echoes() -> None:
        left = rounds * senders
        while left:
            parts = b.receive()
            if parts is None:
                b.wait(PATIENCE_S)
                continue
            assert b.send(b"a", [parts[1]])
            left -= 1

    def sends() -> None:
        for _ in range(rounds):
            assert a.send(b">b", [b"ping"])

    threads = [threading.Thread(target=echoes)]
    threads += [threading.Thread(target=sends) for _ in range(senders)]
    for thread in threads:
        thread.start()
    came = 0
    while came < rounds * senders:
        if a.receive() is not None:
            came += 1
        elif not a.readable():
            a.wait(None)  # for ever, if something that has come were not found
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive()


def test_messages_of_many_threads_keep_the_order_of_each_while_there_is_no_room(
    pair: tuple[Router, Router],
) -> None:
    a, b = pair
    senders, rounds = 4, 400
    sizes = [1, 500, CHEAP + 1, SEGMENT_FROM + 1]

    def sends(me: int) -> None:
        for number in range(rounds):
            assert a.send(b">b", [b"%d %d" % (me, number), bytes(sizes[(me + number) % 4])])

    threads = [threading.Thread(target=sends, args=(me,)) for me in range(senders)]
    with led(a):
        for thread in threads:
            thread.start()
        counts = [0] * senders
        for _ in range(senders * rounds):
            _, text, body = received(b)
            me, number = map(int, text.split())
            assert counts[me] == number
            assert len(body) == sizes[(me + number) % 4]
            counts[me] += 1
        for thread in threads:
            thread.join(timeout=PATIENCE_S)
            assert not thread.is_alive()


# --- forks ----------------------------------------------------------------------------------------


FORKS = """
import os, sys
from monarch._src.net.node import Node
from monarch._src.wire.messages import FlushOutput, OutputFlushed

heard = []
def handle(peer, message, payload):
    if isinstance(message, FlushOutput):
        b.send(peer, OutputFlushed(message.request))
    elif isinstance(message, OutputFlushed):
        heard.append(message.request)

a, b = (Node(name, "proc", f"ipc://{sys.argv[1]}/{name}", handle) for name in "ab")
a.link("b", b.address)

def ask(number):
    assert a.send("b", FlushOutput(number))
    while heard[-1:] != [number]:
        for node in (a, b):
            node.router.wait(0.01)
            node.drain()

ask(1)
before = len(os.listdir("/proc/self/fd"))
child = os.fork()
if child == 0:
    left = len(os.listdir("/proc/self/fd"))
    assert not a.send("b", FlushOutput(7)), "it must not speak in its parent's name"
    a.drain()
    a.forked()
    a.close()
    b.close()
    assert os.path.exists(f"{sys.argv[1]}/a"), "that is its parent's"
    os._exit(before - left)
# Each has its listener, its epoll, what wakes it, and one end of the pipe.
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
ask(2)
print(heard)
"""


CLOSES = """
import os, sys
from monarch._src.net.node import Node

node = Node("a", "proc", f"ipc://{sys.argv[1]}/a", lambda *_: None)
node.start(*map(float, sys.argv[2:]))
child = os.fork()
if child == 0:
    node.close()
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
node.close()
"""


@pytest.mark.parametrize("first_look", [(), ("60",)], ids=["soon", "late"])
def test_a_fork_can_close_a_node_whose_io_thread_it_has_not_got(
    sockets: Path, run_python: Callable[..., str], first_look: tuple[str, ...]
) -> None:
    assert run_python(CLOSES, str(sockets), *first_look) == "3\n"


def test_a_fork_has_none_of_the_pipes_and_its_parent_keeps_all_of_them(
    sockets: Path, run_python: Callable[..., str]
) -> None:
    assert run_python(FORKS, str(sockets)) == "[1, 2]\n"
