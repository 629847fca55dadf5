"""Who waits, receives: no message is lost or slept beside, whoever comes, goes or interrupts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.errors import BlockedLoopError
from monarch._src.net import baton as baton_module
from monarch._src.net.baton import Waitable
from monarch._src.net.interrupt import InterruptGuard
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import OK, AnyMessage, FlushOutput, OutputFlushed, Reply
from tests.said import RuntimeErrors

PATIENCE_S = 60.0
MakeNode = Callable[..., Node]


class Asker:
    """A node that asks another one, and what waits for the answers."""

    def __init__(self, make_node: MakeNode, sockets: Path, **options: Any) -> None:
        self.waiting: dict[int, Waitable] = {}
        self.answered: list[int] = []
        self.inside = 0
        self.node = make_node("asker", self.handle, **options)
        self.echo = make_node("echo", self.answer)
        self.node.link("echo", f"ipc://{sockets}/echo")

    def handle(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        self.inside += 1
        assert self.inside == 1, "handlers run one at a time"
        if isinstance(message, OutputFlushed):
            self.answered.append(message.request)
            self.waiting[message.request].finish()
        self.inside -= 1

    def answer(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        if isinstance(message, FlushOutput):
            self.echo.send(peer, OutputFlushed(message.request))

    def ask(self, number: int) -> Waitable:
        what = self.waiting[number] = Waitable()
        assert self.node.send("echo", FlushOutput(number))
        return what


@pytest.fixture
def asker(make_node: MakeNode, sockets: Path) -> Asker:
    return Asker(make_node, sockets)


@pytest.fixture
def no_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The IO thread, which looks once a tick, does not come to look before the test is over."""
    monkeypatch.setattr(baton_module, "TICK", 10 * PATIENCE_S)


def run_all(*works: Callable[[], object]) -> None:
    """Each on a thread of its own, begun together; what one raises is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def body(work: Callable[[], object]) -> None:
        try:
            start.wait(timeout=PATIENCE_S)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=2 * PATIENCE_S)
        assert not thread.is_alive()
    for error in errors:
        raise error


# --- one thread -----------------------------------------------------------------------------------


def test_whoever_waits_receives(asker: Asker) -> None:
    for number in range(100):
        assert asker.node.wait(asker.ask(number), PATIENCE_S)
    assert asker.answered == list(range(100))


def test_what_is_done_is_not_waited_for(asker: Asker) -> None:
    what = Waitable()
    what.finish()
    what.finish()
    assert asker.node.wait(what)
    assert asker.node.wait(what, 0.0)


def test_a_wait_that_runs_out_says_so_and_consumes_nothing(asker: Asker) -> None:
    what = Waitable()
    for timeout_s in (0.0, -1.0, 0.001):
        assert not asker.node.wait(what, timeout_s)
    what.finish()
    assert asker.node.wait(what, 0.0)


def test_what_another_thread_finishes_ends_the_wait(asker: Asker, no_rescue: None) -> None:
    for _ in range(300):
        what = Waitable()  # no message comes: the leader sleeps on, unless it is told
        finisher = threading.Thread(target=what.finish)
        finisher.start()
        assert asker.node.wait(what, PATIENCE_S)
        finisher.join(timeout=PATIENCE_S)


def test_the_end_of_a_wait_by_its_own_leader_wakes_nobody(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    asker.node.wait(asker.ask(0), PATIENCE_S)
    monkeypatch.setattr(asker.node.router, "wake", lambda: woken.append(1))
    for number in range(1, 50):
        assert asker.node.wait(asker.ask(number), PATIENCE_S)
    monkeypatch.undo()
    assert woken == []


def test_a_handler_must_not_wait(make_node: MakeNode, sockets: Path) -> None:
    done, raised = Waitable(), list[BaseException]()

    def waits(peer: str, message: AnyMessage, payload: Payload) -> None:
        try:
            node.wait(Waitable())
        except BlockedLoopError as error:
            raised.append(error)
        done.finish()

    node = make_node("a", waits)
    node.send("a", OutputFlushed(1))
    assert node.wait(done, PATIENCE_S)
    assert "would never end" in str(raised[0])


def test_a_handler_may_look_at_what_is_done(make_node: MakeNode) -> None:
    done, finished, seen = Waitable(), Waitable(), list[bool]()
    finished.finish()

    def looks(peer: str, message: AnyMessage, payload: Payload) -> None:
        seen.append(node.wait(finished))
        done.finish()

    node = make_node("a", looks)
    node.send("a", OutputFlushed(1))
    assert node.wait(done, PATIENCE_S)
    assert seen == [True]


# --- the IO thread --------------------------------------------------------------------------------


def done_elsewhere(what: Waitable) -> bool:
    """Wait as a thread does that knows nothing of sockets: for a lock."""
    lock = threading.Lock()
    lock.acquire()
    what.sleepers = [lock]
    return what.done or lock.acquire(timeout=PATIENCE_S)


def test_a_message_that_nobody_waits_for_is_handled(asker: Asker) -> None:
    for number in range(20):
        assert done_elsewhere(asker.ask(number))
    assert asker.answered == list(range(20))


def test_a_message_is_handled_while_the_one_who_led_computes(asker: Asker) -> None:
    for number in range(0, 20, 2):
        assert asker.node.wait(asker.ask(number), PATIENCE_S)
        assert done_elsewhere(asker.ask(number + 1))


def test_whoever_awaits_without_blocking_can_call_the_io_thread(
    asker: Asker, no_rescue: None
) -> None:
    what = asker.ask(1)
    asker.node.baton.receive_now()
    assert done_elsewhere(what)


def test_a_descriptor_is_watched_until_it_is_not(asker: Asker) -> None:
    baton = asker.node.baton
    reader, writer = os.pipe()
    read, came = list[bytes](), threading.Semaphore(0)

    def readable() -> None:
        read.append(os.read(reader, 10))
        if read[-1] == b"last":
            baton.unwatch(reader)
            baton.unwatch(reader)
        came.release()

    baton.watch(reader, readable)
    for text in (b"one", b"two", b"last"):
        os.write(writer, text)
        assert came.acquire(timeout=PATIENCE_S)
    os.write(writer, b"unseen")
    assert asker.node.wait(asker.ask(1), PATIENCE_S)
    assert read == [b"one", b"two", b"last"]
    os.close(writer)
    os.close(reader)


def test_a_watcher_that_raises_is_dropped_and_said(
    asker: Asker, runtime_errors: RuntimeErrors
) -> None:
    reader, writer = os.pipe()
    raised = threading.Event()

    def raises() -> None:
        raised.set()
        raise ValueError("in the watcher")

    asker.node.baton.watch(reader, raises)
    os.write(writer, b"x")
    assert raised.wait(timeout=PATIENCE_S)
    assert asker.node.wait(asker.ask(1), PATIENCE_S), "the IO thread lives on"
    (said,) = runtime_errors.take()
    assert "in the watcher" in said
    os.close(writer)
    os.close(reader)


# --- many threads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 6])
def test_no_answer_is_slept_beside(asker: Asker, no_rescue: None, threads: int) -> None:
    """Thousands of rounds in which somebody leads, others follow, and the baton changes hands."""
    rounds = 3000 // threads

    def asks(first: int) -> None:
        for number in range(first, first + rounds):
            assert asker.node.wait(asker.ask(number), PATIENCE_S)

    run_all(*(lambda first=i * rounds: asks(first) for i in range(threads)))
    assert sorted(asker.answered) == list(range(threads * rounds))


def test_waits_of_every_kind_may_be_mixed(asker: Asker) -> None:
    """Waits that run out, waits for the same thing, patient ones, messages nobody waits for."""
    rounds, threads = 150, 6
    shared: list[Waitable] = [asker.ask(-1 - i) for i in range(rounds)]

    def asks(thread: int) -> None:
        draw = random.Random(thread)
        for number in range(thread * rounds, (thread + 1) * rounds):
            what = asker.ask(number)
            match draw.randrange(5):
                case 0:
                    asker.node.wait(Waitable(), 0.0005)
                case 1:
                    assert asker.node.wait(shared[number % rounds], PATIENCE_S)
                case 2:
                    assert asker.node.wait(what, PATIENCE_S, patient=True)
                case 3:
                    continue
                case _:
                    pass
            assert asker.node.wait(what, PATIENCE_S)

    run_all(*(lambda thread=i: asks(thread) for i in range(threads)))
    for what in asker.waiting.values():
        assert asker.node.wait(what, PATIENCE_S)
    assert sorted(asker.answered) == list(range(-rounds, threads * rounds))


def test_many_may_wait_for_the_same(asker: Asker, no_rescue: None) -> None:
    for number in range(100):
        what = asker.ask(number)

        def waits(what: Waitable = what) -> None:
            assert asker.node.wait(what, PATIENCE_S)

        run_all(*[waits] * 4)


def test_one_that_leads_for_long_does_not_keep_the_others(asker: Asker, no_rescue: None) -> None:
    never = Waitable()
    long = threading.Thread(target=lambda: asker.node.wait(never, PATIENCE_S))
    long.start()

    def asks(first: int) -> None:
        for number in range(first, first + 200):
            assert asker.node.wait(asker.ask(number), PATIENCE_S)

    run_all(lambda: asks(0), lambda: asks(1000))
    never.finish()
    long.join(timeout=PATIENCE_S)
    assert not long.is_alive()


def test_an_idle_actor_gives_the_baton_up_to_whoever_is_busy(asker: Asker) -> None:
    idle = Waitable()
    actor = threading.Thread(target=lambda: asker.node.wait(idle, patient=True))
    actor.start()
    for number in range(300):
        assert asker.node.wait(asker.ask(number), PATIENCE_S)
    asker.waiting[1000] = idle
    asker.node.send("echo", FlushOutput(1000))
    actor.join(timeout=PATIENCE_S)
    assert not actor.is_alive()


# --- the end --------------------------------------------------------------------------------------


def test_closing_ends_every_wait(make_node: MakeNode, sockets: Path) -> None:
    for number in range(60):
        node = make_node(f"n{number}")
        ended: list[bool] = []

        def waits(node: Node = node, ended: list[bool] = ended) -> None:
            ended.append(node.wait(Waitable(), PATIENCE_S))

        run_all(waits, waits, lambda node=node: node.wait(Waitable(), patient=True), node.close)
        assert ended == [False, False]
        assert not node.baton._thread.is_alive()
        assert not node.wait(Waitable())


def test_the_socket_is_closed_when_nobody_is_on_it_any_more(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("a", start=False)
    inside, closing = threading.Event(), threading.Event()
    inside_at_close: list[bool] = []
    wait, close = node.router.wait, node.router.close

    def slow_wait(*arguments: Any) -> Any:
        inside.set()
        found = wait(*arguments)
        closing.wait(timeout=0.2)  # woken to leave, this thread is slow to do so
        inside.clear()
        return found

    def noted_close(linger_s: float) -> None:
        closing.set()
        inside_at_close.append(inside.is_set())
        close(linger_s)

    monkeypatch.setattr(node.router, "wait", slow_wait)
    monkeypatch.setattr(node.router, "close", noted_close)
    leader = threading.Thread(target=lambda: node.wait(Waitable(), PATIENCE_S))
    leader.start()
    assert inside.wait(timeout=PATIENCE_S)
    node.close()
    leader.join(timeout=PATIENCE_S)
    assert inside_at_close == [False]


def test_closing_twice_or_before_it_began_is_no_error(make_node: MakeNode) -> None:
    node = make_node("a", start=False)
    node.close()
    node.close()


# --- interrupts -----------------------------------------------------------------------------------


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, whatever ran before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
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
    slept: list[object] = []
    sleep = node.router.wait

    def noted_sleep(*arguments: Any) -> Any:
        slept.append(sleep(*arguments))
        return slept[-1]

    monkeypatch.setattr(node.router, "wait", noted_sleep)
    for number in range(3):
        node.send("a", OutputFlushed(number))
    with pytest.raises(KeyboardInterrupt):
        node.wait(Waitable(), PATIENCE_S)
    assert handled == [0, 1, 2], "what had come was handled to its end"
    assert slept == []


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


@pytest.mark.parametrize("frame", [0, 1, 2])
def test_an_interrupt_between_two_frames_is_raised_when_the_message_is_whole(
    frame: int, make_node: MakeNode, sockets: Path, interruptible: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    came, done = list[list[bytes]](), Waitable()

    def keep(peer: str, message: AnyMessage, payload: Payload) -> None:
        if isinstance(message, Reply):
            came.append([bytes(payload.body), *map(bytes, payload.buffers)])
            if message.call == 2:
                done.finish()

    a, b = make_node("a"), make_node("b", keep)
    a.link("b", f"ipc://{sockets}/b")
    sent, send = 0, a.router._send

    def interrupted_send(*arguments: Any, **options: Any) -> None:
        nonlocal sent
        send(*arguments, **options)
        if sent == frame:
            interrupt_me()
        sent += 1

    with monkeypatch.context() as patch:
        patch.setattr(a.router, "_send", interrupted_send)
        with pytest.raises(KeyboardInterrupt):
            a.send("b", Reply(1, 0, OK), Payload(b"one", [b"buffer"]))
    assert sent == 3
    assert a.send("b", Reply(2, 0, OK), Payload(b"two"))
    assert b.wait(done, PATIENCE_S)
    assert came == [[b"one", b"buffer"], [b"two"]]


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
from monarch._src.net.baton import Waitable
from monarch._src.net.interrupt import InterruptGuard
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
