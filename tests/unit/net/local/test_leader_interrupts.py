"""Interrupts of a thread that waits: raised where they do no harm, and no message is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from monarch._src.net.local.interrupt import (
    LONGEST_BLOCK_S,
    InterruptGuard,
    install_permanent_handler,
)
from monarch._src.net.local.spin import Spin
from monarch._src.net.local.waitable import UnmanagedWait, Waitable
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import OK, AnyMessage, FlushOutput, OutputFlushed, Reply
from monarch._src.wire.segment_refs import SEGMENT_FROM
from tests.support.payloads import buffers_of
from tests.unit.net.asker import PATIENCE_S, Asker, MakeNode


@pytest.fixture(params=["swapped", "kept"])
def interruptible(request: pytest.FixtureRequest) -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, whatever ran before; as in clients, and as in procs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.param == "kept":
        install_permanent_handler()
        install_permanent_handler()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_me() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_while_a_message_is_handled_is_raised_before_the_thread_sleeps(
    make_node: MakeNode, interruptible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[int] = []

    def interrupted(peer: str, message: AnyMessage, payload: Payload) -> None:
        assert isinstance(message, OutputFlushed)
        interrupt_me()
        handled.append(message.request)

    node = make_node("a", interrupted, start=False)
    slept: list[int] = []  # after how many messages; the first sleep ends at once, by what has come
    sleep = node.router.wait

    def noted_sleep(*arguments: Any) -> Any:
        found = sleep(*arguments)
        slept.append(len(handled))
        return found

    monkeypatch.setattr(node.router, "wait", noted_sleep)
    for number in range(3):
        node.send("a", OutputFlushed(number))
    with pytest.raises(KeyboardInterrupt):
        node.wait(Waitable(), PATIENCE_S)
    assert handled == [0, 1, 2], "what had come was handled to its end"
    assert slept == [0], "and nobody slept after that"


def test_an_interrupt_of_a_thread_that_looks_before_it_sleeps_is_raised_at_once(
    make_node: MakeNode, interruptible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("a", start=False)
    spin = Spin(let_others_run=interrupt_me)
    spin._lately_s, spin._to_skip = 0.0, 0  # or it would sleep at once
    monkeypatch.setattr(node.leader, "_spin", spin)
    node.leader.spin(LONGEST_BLOCK_S / 2)
    with pytest.raises(KeyboardInterrupt):
        node.wait(Waitable())


def test_an_interrupt_while_the_awaited_message_is_handled_is_raised_at_the_end_of_the_wait(
    make_node: MakeNode, interruptible: None
) -> None:
    what = Waitable()

    def interrupted(peer: str, message: AnyMessage, payload: Payload) -> None:
        interrupt_me()
        what.finish()

    node = make_node("a", interrupted, start=False)
    node.send("a", OutputFlushed(1))
    with pytest.raises(KeyboardInterrupt):
        node.wait(what, PATIENCE_S)
    assert what.done
    assert node.wait(what)


def interrupt_next_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the main thread is about to sleep, an interrupt is on its way."""
    let_through = InterruptGuard.let_through

    def interrupted(guard: InterruptGuard) -> None:
        monkeypatch.undo()
        let_through(guard)
        threading.Thread(target=interrupt_me, daemon=True).start()

    monkeypatch.setattr(InterruptGuard, "let_through", interrupted)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python notes a SIGINT while the main thread sleeps, and no system call is ended by it.

    The signal is sent to another thread, which has the effect of one that comes between the last
    bytecode of the main thread and its system call.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    about_to_sleep = threading.Event()
    let_through = InterruptGuard.let_through

    def note() -> None:
        about_to_sleep.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def last_check(guard: InterruptGuard) -> None:
        let_through(guard)
        about_to_sleep.set()

    notes = threading.Thread(target=note)
    notes.start()
    monkeypatch.setattr(InterruptGuard, "let_through", last_check)
    yield
    about_to_sleep.set()
    notes.join()
    signal.signal(signal.SIGINT, before)


def test_a_thread_that_receives_raises_an_interrupt_that_python_has_noted(
    make_node: MakeNode, noted: None
) -> None:
    node = make_node("a", start=False)
    with pytest.raises(KeyboardInterrupt):
        node.wait(Waitable(), PATIENCE_S)


def test_a_thread_that_follows_raises_an_interrupt_that_python_has_noted(
    asker: Asker, noted: None
) -> None:
    never = Waitable()
    leader = threading.Thread(target=asker.node.wait, args=(never, PATIENCE_S))
    leader.start()
    with pytest.raises(KeyboardInterrupt):
        asker.node.wait(Waitable(), PATIENCE_S)
    asker.waiting[1] = never
    asker.node.send("echo", FlushOutput(1))
    leader.join(timeout=PATIENCE_S)
    assert never.done


def test_a_thread_without_a_runtime_raises_an_interrupt_that_python_has_noted(noted: None) -> None:
    with pytest.raises(KeyboardInterrupt):
        UnmanagedWait().wait(Waitable(), PATIENCE_S)


def test_a_wait_without_a_runtime_ends_in_time_or_when_it_is_done() -> None:
    what = Waitable()
    assert not UnmanagedWait().wait(what, 0.0)
    threading.Timer(1.2 * LONGEST_BLOCK_S, what.finish).start()  # later than the longest stretch
    assert UnmanagedWait().wait(what, PATIENCE_S)


def test_what_is_guarded_by_nothing_is_interrupted_at_once(interruptible: None) -> None:
    def goes_on() -> None:
        interrupt_me()
        threading.Event().wait(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        goes_on()


def test_who_sets_a_handler_gets_the_interrupts_whatever_was_in_place(
    asker: Asker, interruptible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[int] = []
    what = asker.waiting[1] = Waitable()

    def users(number: int, frame: object) -> None:
        got.append(number)
        asker.node.send("echo", FlushOutput(1))

    signal.signal(signal.SIGINT, users)
    interrupt_next_sleep(monkeypatch)
    assert asker.node.wait(what, PATIENCE_S)
    assert got == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is users


def test_an_interrupt_ends_a_sleep_and_the_wait_can_be_taken_up_again(
    asker: Asker, interruptible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        what = asker.waiting[number] = Waitable()
        interrupt_next_sleep(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            asker.node.wait(what, PATIENCE_S)
        asker.node.send("echo", FlushOutput(number))
        assert asker.node.wait(what, PATIENCE_S)


def test_an_interrupt_of_a_follower_leaves_the_leader_alone(
    asker: Asker, interruptible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, led = Waitable(), list[bool]()
    leader = threading.Thread(target=lambda: led.append(asker.node.wait(never, PATIENCE_S)))
    leader.start()
    interrupt_next_sleep(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        asker.node.wait(Waitable(), PATIENCE_S)
    assert asker.node.wait(asker.ask(1), PATIENCE_S)
    asker.waiting[2] = never
    asker.node.send("echo", FlushOutput(2))
    leader.join(timeout=PATIENCE_S)
    assert led == [True]


def test_a_handler_of_the_users_that_does_not_raise_is_called_each_time(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    what = asker.waiting[1] = Waitable()

    def users(number: int, frame: object) -> None:
        calls.append(number)
        if len(calls) == 3:
            asker.node.send("echo", FlushOutput(1))
        else:
            interrupt_me()

    before = signal.signal(signal.SIGINT, users)
    try:
        interrupt_next_sleep(monkeypatch)
        assert asker.node.wait(what, PATIENCE_S)
        assert signal.getsignal(signal.SIGINT) is users
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls[:3] == [signal.SIGINT] * 3


@pytest.mark.parametrize("write", [0, 1])
def test_an_interrupt_between_two_writes_is_raised_when_the_message_is_whole(
    write: int, make_node: MakeNode, sockets: Path, interruptible: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    came, done = list[list[bytes]](), Waitable()

    def keep(peer: str, message: AnyMessage, payload: Payload) -> None:
        if isinstance(message, Reply):
            came.append([bytes(payload.body), *map(bytes, buffers_of(payload))])
            if message.call == 2:
                done.finish()

    a, b = make_node("a"), make_node("b", keep)
    a.link("b", f"ipc://{sockets}/b")
    pipe, over = a.router._pipes[b">b"], Waitable()
    real, written, buffers = pipe._socket, 0, [bytes(SEGMENT_FROM), b"second"]

    class Interrupted:
        """Takes one half, and the other when there is room again."""

        def sendmsg(self, pieces: Sequence[Any], *rest: Any) -> int:
            nonlocal written
            whole = b"".join(pieces)
            sent = real.send(whole[: len(whole) // 2] if not written else whole)
            if written == write:
                interrupt_me()
            written += 1
            if written == 2:
                over.finish()
            return sent

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    def sends() -> None:
        a.send("b", Reply(1, 0, OK), Payload(b"one", buffers))
        a.wait(over, PATIENCE_S)
        threading.Event().wait(PATIENCE_S)  # until the interrupt by the other thread comes

    with monkeypatch.context() as patch:
        patch.setattr(pipe, "_socket", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            sends()
        assert a.wait(over, PATIENCE_S)
    assert a.send("b", Reply(2, 0, OK), Payload(b"two"))
    assert b.wait(done, PATIENCE_S)
    assert came == [[b"one", *buffers], [b"two"]]


def test_an_interrupt_while_two_nodes_meet_is_raised_when_they_have_met(
    make_node: MakeNode, sockets: Path, interruptible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Waitable()
    a = make_node("a")
    b = make_node("b", lambda peer, message, payload: type(message) is Reply and done.finish())
    a.expect("b")
    a.send("b", Reply(1, 0, OK), Payload(b"early"))
    connect = a.router.connect

    def interrupted_connect(*arguments: Any) -> None:
        connect(*arguments)
        interrupt_me()

    monkeypatch.setattr(a.router, "connect", interrupted_connect)
    with pytest.raises(KeyboardInterrupt):
        a.link("b", f"ipc://{sockets}/b")
    a.link("b", f"ipc://{sockets}/b")
    assert b.wait(done, PATIENCE_S)


INTERRUPTED = """
import os, signal, sys, threading
from monarch._src.net.local.waitable import UnmanagedWait, Waitable
from monarch._src.net.local.interrupt import InterruptGuard
from monarch._src.net.node import Node
from monarch._src.wire.messages import FlushOutput, OutputFlushed

folder, rounds, followers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
waiting, answered, interrupts = {}, [], 0
in_wait = False

def on_interrupt(number, frame):
    if in_wait:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, on_interrupt)

def handle(peer, message, payload):
    if type(message) is OutputFlushed:
        answered.append(message.request)
        waiting[message.request].finish()

def echo_back(peer, message, payload):
    if type(message) is FlushOutput:
        echo.send(peer, OutputFlushed(message.request))

node = Node("asker", "proc", f"ipc://{folder}/asker", handle)
echo = Node("echo", "proc", f"ipc://{folder}/echo", echo_back)
node.start(); echo.start()
node.link("echo", f"ipc://{folder}/echo")

def ask(number):
    waiting[number] = Waitable()
    node.send("echo", FlushOutput(number))
    return waiting[number]

def follow(first):
    for number in range(first, first + rounds):
        assert node.wait(ask(number), 60.0)

threads = [threading.Thread(target=follow, args=((i + 1) * rounds,)) for i in range(followers)]
for thread in threads:
    thread.start()
print("up", flush=True)
for number in range(rounds):
    what = ask(number)
    while not what.done:
        try:
            in_wait = True
            done = node.wait(what, 60.0)
            in_wait = False
            assert done
        except KeyboardInterrupt:
            in_wait = False
            interrupts += 1
            sys.stdout.write("i"); sys.stdout.flush()
for thread in threads:
    thread.join()
node.close(); echo.close()
assert sorted(answered) == list(range(rounds * (followers + 1))), "each answered once"
print(f"\\ninterrupted {interrupts} times")
"""


@pytest.mark.parametrize("followers", [0, 2])
def test_a_storm_of_interrupts_loses_no_message(sockets: Path, followers: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(sockets), "1500", str(followers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "up\n"
        said = ""
        child.send_signal(signal.SIGINT)
        while (character := child.stdout.read(1)) == "i":
            said += character
            child.send_signal(signal.SIGINT)  # as soon as the last one was raised
        said += child.stdout.read()
        assert child.wait(timeout=PATIENCE_S) == 0, child.stderr.read()
    assert "interrupted" in said
