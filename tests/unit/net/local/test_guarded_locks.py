"""Locks that a thread takes while others may raise in it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from monarch._src.net.local.interrupt import (
    GuardedLock,
    Shield,
    install_permanent_handler,
    shield_this_thread,
    unshield_this_thread,
)

INTERRUPTS = 300


class Ended(BaseException):
    """What is raised."""


@pytest.fixture(params=["swapped", "kept"])
def interruptible(request: pytest.FixtureRequest) -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt; as in clients, and as in procs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.param == "kept":
        install_permanent_handler()
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_storm_of_interrupts_leaves_no_lock_taken(interruptible: None, reentrant: bool) -> None:
    lock, main = GuardedLock(reentrant=reentrant), threading.main_thread()
    assert main.ident is not None
    wanted = threading.Semaphore(0)

    def storm(thread: int) -> None:
        for _ in range(INTERRUPTS):
            wanted.acquire()
            signal.pthread_kill(thread, signal.SIGINT)

    sender = threading.Thread(target=storm, args=(main.ident,))
    sender.start()
    interrupts = inside = 0
    while interrupts < INTERRUPTS:
        try:
            wanted.release()
            while True:
                with lock:
                    inside += 1
                    inside -= 1
        except KeyboardInterrupt:
            interrupts += 1
            assert taken_by_another(lock), f"free after {interrupts} interrupts"
            assert inside == 0, "what the lock is for was done to its end"
    sender.join()


def test_the_end_of_a_call_leaves_no_lock_taken() -> None:
    lock, calls = GuardedLock(), [object() for _ in range(INTERRUPTS)]
    shields: list[Shield] = []
    ready, ended = threading.Event(), threading.Semaphore(0)
    inside: list[int] = []
    left: list[int] = []  # the calls that left the lock taken, or its work half done

    def work() -> None:
        nonlocal lock
        shield = shield_this_thread(Ended)
        assert isinstance(shield, Shield)
        shields.append(shield)
        ready.set()
        for number, call in enumerate(calls):
            try:
                try:
                    shield.begin(call)
                    while True:
                        with lock:
                            inside.append(number)
                            inside.pop()
                finally:
                    shield.work = None
                    shield.end()
            except Ended:
                shield.end()
            if inside or not taken_by_another(lock):
                left.append(number)
                lock = GuardedLock()
            ended.release()
        unshield_this_thread(shield)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    for call in calls:
        while not shields[0].raise_in(call):
            pass  # it has not begun
        ended.acquire()
    thread.join()
    assert left == []


def taken_by_another(lock: GuardedLock) -> bool:
    """Whether another thread can have it."""
    taken: list[bool] = []

    def take() -> None:
        inner = lock._lock  # pyright: ignore[reportPrivateUsage]
        taken.append(inner.acquire(False))
        if taken[0]:
            inner.release()

    taker = threading.Thread(target=take)
    taker.start()
    taker.join()
    return taken[0]
