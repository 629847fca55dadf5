"""Routers and the pipes between them: who is heard under which name, and how a pipe ends."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from monarch._src.net.local.router import LONGEST_NAME, Router
from monarch._src.wire.segment_refs import SEGMENT_FROM
from tests.unit.net.routers import (
    LARGE,
    PATIENCE_S,
    MakeRouter,
    MakeStranger,
    address,
    cut_off,
    led,
    received,
)

pytestmark = pytest.mark.usefixtures("polling")

needs_credentials = pytest.mark.skipif(
    not hasattr(socket, "SO_PEERCRED"), reason="this system does not tell whose process it is"
)


# --- pipes and names ------------------------------------------------------------------------------


def test_a_message_arrives_with_the_name_of_its_sender(pair: tuple[Router, Router]) -> None:
    a, b = pair
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
    assert router.send_all([b"nobody"], [b"head"]) == [b"nobody"]


def test_a_message_to_several_reaches_each_that_is_known_and_the_others_are_told_of(
    make_router: MakeRouter, sockets: Path
) -> None:
    a, b, c = map(make_router, "abc")
    for name in "bc":
        a.connect(b">" + name.encode(), address(sockets, name))
    for frames in ([b"head"], [b"head", b"x" * (SEGMENT_FROM + 1)]):
        assert a.send_all([b">b", b"nobody", b">c"], frames) == [b"nobody"]
        assert received(b) == received(c) == [b"a", *frames]


def test_a_message_waits_for_a_peer_that_does_not_listen_yet(
    make_router: MakeRouter, sockets: Path
) -> None:
    a = make_router("a")
    a.connect(b">b", address(sockets, "b"))
    due = a.due_in()
    assert due is not None
    for number in range(3):
        assert a.send(b">b", [b"%d" % number])
    assert not a.reachable(b">b"), "nobody is there from whom anything could come"
    b = make_router("b")
    assert [received(b, a)[1] for _ in range(3)] == [b"0", b"1", b"2"]
    assert a.due_in() is None, "there is nobody left to connect to"
    assert a.reachable(b">b")


def test_a_loop_that_polls_the_descriptor_itself_connects_when_a_peer_comes(
    make_router: MakeRouter, sockets: Path
) -> None:
    a = make_router("a")
    a.connect(b">b", address(sockets, "b"))
    assert a.send(b">b", [b"hello"])
    b = make_router("b")
    end = time.monotonic() + PATIENCE_S
    while (due := a.due_in()) is not None and time.monotonic() < end:
        readable, _, _ = select.select([a.fd], [], [], due)
        a.skip_next_poll()
        if readable:
            a.poll_now()
        a.clear_wake_ups()
        assert a.receive() is None
    assert a.due_in() is None
    assert received(b, a)[1] == b"hello"


def test_one_that_waits_without_end_connects_when_a_peer_comes(
    make_router: MakeRouter, sockets: Path
) -> None:
    a = make_router("a")
    with led(a):
        a.connect(b">b", address(sockets, "b"))
        a.send(b">b", [b"early"])
        assert received(make_router("b")) == [b"a", b"early"]


def test_two_that_connect_to_each_other_have_two_pipes(
    pair: tuple[Router, Router], sockets: Path
) -> None:
    a, b = pair
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


def test_what_was_not_read_of_a_pipe_that_was_closed_is_dropped_and_another_can_follow(
    pair: tuple[Router, Router], sockets: Path
) -> None:
    a, b = pair
    a.send(b">b", [b"first"])
    assert received(b) == [b"a", b"first"]
    b.send(b"a", [b"never read"])
    a.disconnect(address(sockets, "b"))
    a.connect(b">b", address(sockets, "b"))
    a.send(b">b", [b"second"])
    assert received(b, a) == [b"a", b"second"]
    assert b.send(b"a", [b"read"])
    assert received(a) == [b">b", b"read"]


def test_a_name_that_is_taken_stays_with_who_had_it_first(
    pair: tuple[Router, Router], sockets: Path, stranger: MakeStranger
) -> None:
    a, b = pair
    a.send(b">b", [b"first"])
    assert received(b) == [b"a", b"first"]
    impostor = stranger(address(sockets, "b"), "a")
    impostor.say([b"second"])
    assert cut_off(b, impostor)
    a.send(b">b", [b"third"])
    assert received(b) == [b"a", b"third"]


def test_a_name_is_free_again_when_its_pipe_has_ended(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger
) -> None:
    b = make_router("b")
    first = stranger(address(sockets, "b"), "a")
    first.say([b"one"])
    assert received(b) == [b"a", b"one"]
    first.say([b"two"])
    first.socket.close()  # and the next is there before that was seen
    second = stranger(address(sockets, "b"), "a")
    second.say([b"three"])
    assert [received(b) for _ in range(2)] == [[b"a", b"two"], [b"a", b"three"]]
    assert b.send(b"a", [b"answer"])
    assert second.hear() == [b"answer"]


@pytest.mark.parametrize("name", [[b""], [b">b"], [b"x" * (LONGEST_NAME + 1)], [b"a", b"more"]])
def test_who_has_no_name_is_refused(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger,
    caplog: pytest.LogCaptureFixture, name: list[bytes],
) -> None:  # fmt: skip
    b = make_router("b")
    nameless = stranger(address(sockets, "b"))
    nameless.say(name)
    nameless.say([b"message"])
    assert cut_off(b, nameless)
    assert "that is no name" in caplog.text


@pytest.mark.parametrize("junk", [b"\x7f\xff\xff\xff junk", b"\x80\0\0\0", b"\xff" * 64])
def test_what_is_no_stream_of_messages_closes_its_pipe_and_no_other(
    pair: tuple[Router, Router], sockets: Path, stranger: MakeStranger,
    caplog: pytest.LogCaptureFixture, junk: bytes,
) -> None:  # fmt: skip
    a, b = pair
    speaks_something_else = stranger(address(sockets, "b"), "c")
    speaks_something_else.say([b"sense"])
    assert received(b) == [b"c", b"sense"]
    speaks_something_else.socket.sendall(junk)
    assert cut_off(b, speaks_something_else)
    assert "closed the pipe from b'c'" in caplog.text
    a.send(b">b", [b"message"])
    assert received(b) == [b"a", b"message"]


@pytest.mark.parametrize(
    ("said", "why"), [(b"\xff" * 64, "closed the pipe"), (b"\0\0\0\1>" * 9, "refused a pipe")]
)
def test_many_that_are_cut_off_cost_few_lines(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger,
    caplog: pytest.LogCaptureFixture, said: bytes, why: str,
) -> None:  # fmt: skip
    b = make_router("b")
    for _ in range(100):
        one = stranger(address(sockets, "b"))
        one.socket.sendall(said)
        assert cut_off(b, one)
    lines = [line for line in caplog.messages if line.startswith(why)]
    assert len(lines) == 8 + 3  # and one each at 16, 32 and 64
    assert lines[-1].endswith("(64 like it)")


def test_what_is_not_received_stays_with_its_sender(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger
) -> None:
    b = make_router("b")
    says_much = stranger(address(sockets, "b"), "a")
    says_much.socket.setblocking(False)
    said = 0
    for _ in range(200):
        with contextlib.suppress(BlockingIOError):
            while said < LARGE:
                said += says_much.socket.send(bytes(1 << 16))  # very many empty messages
        b.wait(0)
        assert b.readable()
    assert said < LARGE


def test_where_it_cannot_listen_it_says_so_and_keeps_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Router(b"a", f"ipc://{tmp_path}/missing/a")
    with pytest.raises(ValueError, match="no address of this host"):
        Router(b"a", "tcp://127.0.0.1:5555")
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_nobody_can_ever_listen_connecting_says_so_and_keeps_nothing(
    make_router: MakeRouter, tmp_path: Path
) -> None:
    a = make_router("a")
    (tmp_path / "file").touch()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotADirectoryError):
        a.connect(b">b", f"ipc://{tmp_path}/file/b")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not a.send(b">b", [b"head"])


def test_a_socket_that_a_dead_process_has_left_is_no_obstacle(sockets: Path) -> None:
    path = sockets / "a"
    path.touch()
    router = Router(b"a", address(sockets, "a"))
    router.close()
    assert not path.exists()


CONNECTS = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
connected = socket.socket(socket.AF_UNIX)
connected.connect(sys.argv[1])
sys.stdin.read()
"""


@needs_credentials
def test_a_process_of_another_user_is_refused_though_it_came_as_far_as_the_socket(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    b = make_router("b")
    user = os.geteuid() or 65534
    if not os.geteuid():  # root may connect to everybody, so it is somebody else who comes
        for folder in (sockets, *sockets.parents[:2]):
            folder.chmod(0o711)
        (sockets / "b").chmod(0o666)
        comes: Any = subprocess.Popen(
            [sys.executable, "-I", "-c", CONNECTS, str(sockets / "b"), str(user)],
            stdin=subprocess.PIPE,
        )
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        comes = contextlib.nullcontext(stranger(address(sockets, "b"), "a"))
    with comes:
        while "refused" not in caplog.text:
            b.wait(PATIENCE_S)
            assert b.receive() is None
    assert f"refused a pipe from a process of user {user}" in caplog.text
    assert not b._by_fd


def test_who_connects_and_says_something_is_heard_by_one_look(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger
) -> None:
    b = make_router("b")
    stranger(address(sockets, "b"), "a").say([b"hello"])
    b.wait(PATIENCE_S)
    b.skip_next_poll()  # so that to receive is not to look
    assert b.receive() == [b"a", b"hello"]


# --- ends of pipes --------------------------------------------------------------------------------


def test_the_end_of_a_pipe_comes_behind_what_came_through_it(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger
) -> None:
    b = make_router("b")
    dies = stranger(address(sockets, "b"), "a")
    for number in range(11):
        dies.say([b"%d" % number, bytes(1000)])
        if number < 5:
            assert received(b)[1] == b"%d" % number
            assert b.reachable(b"a")
    dies.socket.close()
    assert [received(b)[1] for _ in range(6)] == [b"%d" % number for number in range(5, 11)]
    while b.reachable(b"a"):
        b.wait(PATIENCE_S)
        assert b.receive() is None
    assert b.receive() is None
    assert not b.send(b"a", [b"to whom?"])


def test_what_one_said_before_it_died_is_heard_though_it_cannot_be_answered(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger
) -> None:
    b = make_router("b")
    dies = stranger(address(sockets, "b"), "a")
    dies.say([b"hello"])
    assert received(b) == [b"a", b"hello"]
    dies.say([b"last words"])
    dies.socket.close()
    assert not b.send(b"a", [b"answer"])
    assert received(b) == [b"a", b"last words"]


def test_a_message_of_which_a_part_came_is_none(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger
) -> None:
    b = make_router("b")
    for size in (5, 1 << 14, SEGMENT_FROM + 5):
        dies = stranger(address(sockets, "b"), "a")
        dies.say([b"whole"])
        dies.socket.sendall((1 << 31 | 1).to_bytes(4, "big") + (size + 1).to_bytes(8, "big"))
        dies.socket.sendall(bytes(size))
        dies.socket.close()
        assert received(b) == [b"a", b"whole"]
        while b.reachable(b"a"):
            b.wait(PATIENCE_S)
            assert b.receive() is None


def test_who_cannot_be_accepted_for_want_of_descriptors_is_accepted_later(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger, caplog: pytest.LogCaptureFixture
) -> None:
    b = make_router("b")
    accept, short = b._listener.accept, True

    class Listener:
        def accept(self) -> Any:
            if short:
                raise OSError(errno.EMFILE, "Too many open files")
            return accept()

        def close(self) -> None: ...

    real, b._listener = b._listener, Listener()  # pyright: ignore[reportAttributeAccessIssue]
    comes = stranger(address(sockets, "b"), "a")
    comes.say([b"message"])
    b.wait(PATIENCE_S)
    assert b.receive() is None
    assert "cannot accept a connection now: Too many open files" in caplog.text
    caplog.clear()
    short = False
    assert received(b) == [b"a", b"message"]
    assert caplog.text == ""
    b._listener = real


# --- the end --------------------------------------------------------------------------------------


def test_a_closed_router_sends_and_receives_nothing_and_waits_for_nothing(
    make_router: MakeRouter, sockets: Path
) -> None:
    a = make_router("a")
    a.connect(b">b", address(sockets, "b"))
    a.close()
    a.close()
    assert a.closed
    assert not a.send(b">b", [b"head"])
    assert a.receive() is None
    assert not a.readable()
    assert a.wait(None) == []
    a.wake()
    a.disconnect(address(sockets, "b"))


def test_closing_gives_every_descriptor_and_the_address_back(
    make_router: MakeRouter, sockets: Path, stranger: MakeStranger
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    a.connect(b">c", address(sockets, "c"))
    a.send(b">b", [b"head"])
    received(b)
    stranger(address(sockets, "b"), "d").socket.close()
    a.close()
    b.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(sockets) == []


def test_what_was_sent_last_still_leaves_if_it_is_given_time(pair: tuple[Router, Router]) -> None:
    a, b = pair
    data = os.urandom(LARGE)
    a.send(b">b", [b"last", data])
    closes = threading.Thread(target=lambda: a.close(linger_s=PATIENCE_S))
    closes.start()
    assert received(b) == [b"a", b"last", data]
    closes.join(timeout=PATIENCE_S)
    assert not closes.is_alive()


def test_one_that_nobody_reads_is_not_waited_for_longer_than_that(
    pair: tuple[Router, Router],
) -> None:
    a, _ = pair
    a.send(b">b", [b"last", bytes(LARGE)])
    a.close(linger_s=0.01)
    assert a.closed
