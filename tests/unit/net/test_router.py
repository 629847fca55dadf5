"""One socket, many threads: nothing is lost, nobody sleeps beside a message."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from monarch._src.net.router import ZERO_COPY, Router

MakeRouter = Callable[[str], Router]
PATIENCE_S = 30.0


def address(router_of: Path, name: str) -> str:
    return f"ipc://{router_of}/{name}"


def received(router: Router) -> list[bytes]:
    """The next message; waits for it."""
    poller = router.poller()
    while True:
        parts = router.receive()
        if parts is not None:
            return [bytes(part) for part in parts]
        router.wait(poller, PATIENCE_S)


def test_a_message_arrives_with_the_name_of_its_sender(
    make_router: MakeRouter, sockets: Path
) -> None:
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    assert a.send(b">b", [b"head", b"bulk", b""])
    assert received(b) == [b"a", b"head", b"bulk", b""]
    assert b.send(b"a", [b"answer"])
    assert received(a) == [b">b", b"answer"]


def test_there_is_nothing_to_receive_where_nothing_came(make_router: MakeRouter) -> None:
    router = make_router("a")
    assert router.receive() is None
    assert not router.readable()


def test_a_message_to_someone_unknown_is_not_sent(make_router: MakeRouter) -> None:
    router = make_router("a")
    assert not router.send(b"nobody", [b"head"])
    assert not router.send(b"nobody", [b"head", b"bulk"])


def test_a_message_waits_for_a_peer_that_does_not_listen_yet(
    make_router: MakeRouter, sockets: Path
) -> None:
    a = make_router("a")
    a.connect(b">b", address(sockets, "b"))
    for number in range(3):
        assert a.send(b">b", [b"%d" % number])
    b = make_router("b")
    assert [received(b)[1] for _ in range(3)] == [b"0", b"1", b"2"]


def test_two_that_connect_to_each_other_have_two_pipes(
    make_router: MakeRouter, sockets: Path
) -> None:
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    b.connect(b">a", address(sockets, "a"))
    assert a.send(b">b", [b"from a"])
    assert b.send(b">a", [b"from b"])
    assert received(b) == [b"a", b"from a"]
    assert received(a) == [b"b", b"from b"]


def test_a_pipe_that_was_closed_takes_nothing(make_router: MakeRouter, sockets: Path) -> None:
    a = make_router("a")
    a.connect(b">b", address(sockets, "b"))
    a.disconnect(address(sockets, "b"))
    assert not a.send(b">b", [b"head"])
    a.disconnect(address(sockets, "b"))
    a.disconnect(address(sockets, "never-connected"))


@pytest.mark.parametrize("size", [0, 1, ZERO_COPY - 1, ZERO_COPY, ZERO_COPY + 1, 8 << 20])
def test_frames_of_any_size_arrive_whole(make_router: MakeRouter, sockets: Path, size: int) -> None:
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    data = os.urandom(size)
    a.send(b">b", [b"head", data, memoryview(data), bytearray(data)])
    assert received(b)[1:] == [b"head", data, data, data]


def test_what_is_received_as_bulk_can_be_written_to(make_router: MakeRouter, sockets: Path) -> None:
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    a.send(b">b", [b"head", bytes(ZERO_COPY)])
    b.wait(b.poller(), PATIENCE_S)
    parts = b.receive()
    while parts is None:
        b.wait(b.poller(), PATIENCE_S)
        parts = b.receive()
    assert isinstance(parts[2], memoryview)
    assert not parts[2].readonly


def test_a_name_that_is_taken_stays_with_who_had_it_first(
    make_router: MakeRouter, sockets: Path, bare_socket: Callable[..., zmq.Socket[bytes]]
) -> None:
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    a.send(b">b", [b"first"])
    assert received(b) == [b"a", b"first"]
    impostor = bare_socket(zmq.DEALER, "a")
    impostor.connect(address(sockets, "b"))
    impostor.send(b"second")
    a.send(b">b", [b"third"])
    assert received(b) == [b"a", b"third"]


def test_where_it_cannot_listen_it_says_so_and_keeps_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(zmq.ZMQError, match="No such file"):
        Router(b"a", f"ipc://{tmp_path}/missing/a")
    assert len(os.listdir("/proc/self/fd")) == before


# --- waiting --------------------------------------------------------------------------------------


def test_waking_before_the_wait_ends_the_wait(make_router: MakeRouter) -> None:
    router = make_router("a")
    poller = router.poller()
    for _ in range(3):
        router.wake()
    assert router.wait(poller, PATIENCE_S) == []
    assert router.wait(poller, 0.0) == [], "three calls that came at once are one"


def test_waking_from_another_thread_ends_the_wait(make_router: MakeRouter) -> None:
    router = make_router("a")
    poller, rounds = router.poller(), 1000
    woken, proceed = threading.Semaphore(0), threading.Semaphore(0)

    def waits() -> None:
        for _ in range(rounds):
            router.wait(poller, None)
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


def test_a_descriptor_that_somebody_added_is_told(make_router: MakeRouter) -> None:
    router = make_router("a")
    poller = router.poller()
    reader, writer = os.pipe()
    poller.register(reader)
    os.write(writer, b"x")
    assert [fd for fd, _ in router.wait(poller, PATIENCE_S)] == [reader]
    os.close(writer)
    os.close(reader)


def test_no_message_is_slept_beside_while_other_threads_send(
    make_router: MakeRouter, sockets: Path
) -> None:
    """Each send may swallow the edge of the descriptor on which the receiver sleeps."""
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    rounds, senders = 500, 3
    poller = a.poller()

    def echoes() -> None:
        left = rounds * senders
        b_poller = b.poller()
        while left:
            parts = b.receive()
            if parts is None:
                b.wait(b_poller, PATIENCE_S)
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
            a.wait(poller, None)  # for ever, if an edge was swallowed and nobody woke us
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive()


# --- the end --------------------------------------------------------------------------------------


def test_a_closed_router_sends_and_receives_nothing_and_waits_for_nothing(
    make_router: MakeRouter, sockets: Path
) -> None:
    a = make_router("a")
    poller = a.poller()
    a.connect(b">b", address(sockets, "b"))
    a.close()
    a.close()
    assert a.closed
    assert not a.send(b">b", [b"head"])
    assert a.receive() is None
    assert not a.readable()
    assert a.wait(poller, None) == []
    a.wake()
    a.disconnect(address(sockets, "b"))


def test_closing_gives_every_descriptor_back(make_router: MakeRouter, sockets: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    a.send(b">b", [b"head"])
    received(b)
    a.close()
    b.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_sent_last_still_leaves_if_it_is_given_time(
    make_router: MakeRouter, sockets: Path
) -> None:
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    data = os.urandom(4 << 20)
    a.send(b">b", [b"last", data])
    a.close(linger_s=PATIENCE_S)
    assert received(b) == [b"a", b"last", data]
