"""Who waits, receives: no message is lost or slept beside, whoever comes or goes."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch._src.errors import BlockedLoopError
from monarch._src.net.local.waitable import Waitable
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import AnyMessage, FlushOutput, OutputFlushed
from tests.runtime_logs import RuntimeErrors
from tests.unit.net.asker import PATIENCE_S, Asker, MakeNode, run_all

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
    asker.node.leader.receive_now()
    assert done_elsewhere(what)


def test_a_descriptor_is_watched_until_it_is_not(asker: Asker) -> None:
    baton = asker.node.leader
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

    asker.node.leader.watch(reader, raises)
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
                    assert asker.node.wait(what, PATIENCE_S, idle=True)
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
    actor = threading.Thread(target=lambda: asker.node.wait(idle, idle=True))
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

        run_all(waits, waits, lambda node=node: node.wait(Waitable(), idle=True), node.close)
        assert ended == [False, False]
        thread = node.leader._thread
        assert thread is not None
        assert not thread.is_alive()
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


def test_what_follows_from_a_message_that_is_no_answer_is_seen_to_before_its_waiter_sleeps(
    asker: Asker, no_rescue: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = Waitable()

    def after_drain() -> bool:
        if asker.answered and not what.done:
            what.finish()
        return False

    sleep = asker.node.router.wait

    def sleeps(*given: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            assert what.done or not asker.answered, "it sleeps beside what it has received"
        return sleep(*given)

    monkeypatch.setattr(asker.node.router, "wait", sleeps)
    asker.node.after_drain = after_drain
    asker.ask(1)
    assert asker.node.leader.wait(what, PATIENCE_S)


def test_an_io_thread_that_is_to_look_late_leaves_all_to_who_waits_and_ends_at_once(
    make_node: MakeNode,
) -> None:
    threads: set[str] = set()
    came = [Waitable() for _ in range(3)]

    def note(_peer: str, message: AnyMessage, _payload: Payload) -> None:
        threads.add(threading.current_thread().name)
        if isinstance(message, OutputFlushed):
            came[message.request].finish()

    a, b = make_node("a"), make_node("b", note, start=False)
    b.start(first_check_s=10 * PATIENCE_S)
    a.link("b", b.address)
    for number, what in enumerate(came):
        a.send("b", OutputFlushed(number))
        assert b.wait(what, PATIENCE_S)
    assert threads == {threading.current_thread().name}
    b.close()
    assert not any(thread.name == "monarch-io-b" for thread in threading.enumerate())
