"""The wait of a thread, told from its frames while it lasts."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._src.actor.run.interruptible_sleep import sleep
from monarch._src.observe.stacks.rank_part import Awaited, blocked_on


class Waits:
    """Waits of all kinds, each of which `release` ends."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.queue: queue.PriorityQueue[int] = queue.PriorityQueue()
        self.lock = threading.Lock()
        self.recursive = threading.RLock()
        self.future: Future[int] = Future()
        self.child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.over = False
        self.lock.acquire()
        self.recursive.acquire()

    def on_event(self) -> None:
        self.event.wait()

    def on_event_for_long(self) -> None:
        self.event.wait(600)

    def on_queue(self) -> None:
        self.queue.get()

    def on_future(self) -> None:
        self.future.result()

    def on_child(self) -> None:
        self.child.wait()

    def in_with(self) -> None:
        with self.lock:
            self.lock_again = True

    def in_acquire(self) -> None:
        self.lock.acquire()

    def in_acquire_for_long(self) -> None:
        lock = self.lock
        lock.acquire(True, timeout=600)

    def in_recursive(self) -> None:
        with self.recursive:
            pass

    def in_sleep(self) -> None:
        while not self.event.is_set():
            sleep(0.3)

    def computes(self) -> None:
        while not self.over:
            len([])

    def release(self) -> None:
        self.over = True
        self.event.set()
        self.queue.put(1)
        self.future.set_result(1)
        self.lock.release()
        self.recursive.release()
        self.child.communicate(b"\n")


@contextmanager
def waiting(name: str) -> Generator[Callable[[], Awaited | None]]:
    """A thread in that method; yields a function that says what it waits for."""
    waits = Waits()
    begun = threading.Event()

    def run() -> None:
        begun.set()
        getattr(waits, name)()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        begun.wait()
        instance: Any = SimpleNamespace(blocked_on=None, blocked_since=0.0, thread=thread.ident)
        yield lambda: blocked_on(instance, vars(waits))
    finally:
        waits.release()
        thread.join()


@pytest.mark.parametrize(
    ("name", "what", "is_local"),
    [
        ("on_event", "threading.Event.wait of self.event", True),
        ("on_event_for_long", "threading.Event.wait of self.event, for at most 600 s", True),
        ("on_queue", r"queue.(Priority)?Queue.get of self.queue", True),
        ("on_future", "concurrent.futures.Future.result of self.future", True),
        ("on_child", "subprocess.Popen.wait of self.child", False),
        ("in_with", "threading.Lock.acquire of self.lock", True),
        ("in_acquire", "threading.Lock.acquire of self.lock", True),
        ("in_acquire_for_long", "threading.Lock.acquire of lock", True),
        ("in_recursive", "threading.RLock.acquire of self.recursive", True),
        ("in_sleep", r"time.sleep\(0.3\)", False),
    ],
)
def test_a_thread_that_blocks_is_told_with_the_object_of_its_wait(
    name: str, what: str, is_local: bool
) -> None:
    with waiting(name) as found:
        while (awaited := found()) is None or re.fullmatch(what, awaited.what) is None:
            pass  # it is on its way there
        assert awaited.is_local is is_local
        assert awaited.frames == ()
        assert (awaited.waited_s is not None) is name.endswith("sleep")


def test_a_thread_that_computes_is_not_told_to_wait() -> None:
    with waiting("computes") as found:
        assert {found() for _ in range(100)} == {None}
