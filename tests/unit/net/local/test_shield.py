"""Raising in another thread: in the work that is meant, or nowhere."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator

import pytest

from monarch._src.net.local.interrupt import Shield, shield_this_thread, unshield_this_thread

pytestmark = pytest.mark.slow

ENDED = 200  # pieces of work that have to be ended before it is enough
ENDED_TWICE = 200  # as that, where a piece of work goes on after the first exception


class Ended(BaseException):
    """What is raised."""


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Worker(threading.Thread):
    """Does one piece of work after another; every other one may be ended."""

    def __init__(self, *, enters: bool, swallows: bool = False) -> None:
        super().__init__()
        self.enters = enters
        self.swallows = swallows
        self.enough = ENDED_TWICE if swallows else ENDED
        self.finished = False
        self.shields: list[Shield] = []
        self.ready = threading.Event()
        self.ended: list[int] = []
        self.wrong: list[int] = []
        self.swallowed: list[int] = []
        self.number = 0

    def run(self) -> None:
        shield = shield_this_thread(Ended)
        assert isinstance(shield, Shield)
        self.shields.append(shield)
        self.ready.set()
        for number in itertools.count():
            if len(self.ended) >= self.enough or self.wrong:
                break
            self.number = number
            try:
                try:
                    shield.begin(number)
                    self.work(shield)
                finally:
                    shield.work = None
                    shield.end()
            except Ended:
                shield.end()
                (self.ended if number % 2 else self.wrong).append(number)
        unshield_this_thread(shield)
        self.finished = True

    def work(self, shield: Shield) -> None:
        if self.swallows:
            try:
                self.add(shield)
            except Ended:
                self.swallowed.append(self.number)
        self.add(shield)

    def add(self, shield: Shield) -> None:
        total = 0
        for i in range(self.number % 97):
            if self.enters and i % 3 == 0:
                with shield:
                    total += sum(range(5))
            total += i


@pytest.mark.parametrize("enters", [False, True])
def test_a_storm_ends_only_what_it_is_meant_for(quick_switches: None, enters: bool) -> None:
    worker = Worker(enters=enters)
    worker.start()
    worker.ready.wait()
    (shield,) = worker.shields
    hits = 0
    while worker.is_alive():
        number = worker.number
        if number % 2:
            hits += shield.raise_in(number)
    worker.join()
    assert worker.finished
    assert worker.wrong == []
    assert hits >= len(worker.ended)


@pytest.mark.parametrize("enters", [False, True])
def test_storms_from_several_threads_end_what_goes_on_after_the_first_too(
    quick_switches: None, enters: bool
) -> None:
    worker = Worker(enters=enters, swallows=True)
    worker.start()
    worker.ready.wait()
    (shield,) = worker.shields

    def storm() -> None:
        while worker.is_alive():
            number = worker.number
            if number % 2:
                shield.raise_in(number)

    raisers = [threading.Thread(target=storm) for _ in range(3)]
    for raiser in raisers:
        raiser.start()
    for raiser in raisers:
        raiser.join()
    assert worker.finished
    assert worker.wrong == []
    assert worker.swallowed
    assert all(number % 2 for number in worker.swallowed)


def test_what_comes_while_the_runtime_works_is_raised_when_it_is_done() -> None:
    shield = Shield(Ended)
    shield.begin("work")
    inside: list[str] = []

    def send() -> None:
        with shield:
            assert shield.raise_in("work")
            inside.append("went on")

    with pytest.raises(Ended):
        send()
    assert inside == ["went on"]
    shield.end()


def test_what_comes_before_a_wait_is_raised_before_it_blocks() -> None:
    shield = Shield(Ended)
    shield.begin("work")

    def wait() -> None:
        with shield:
            assert shield.raise_in("work")
            shield.let_through()
            pytest.fail("it would have blocked")

    with pytest.raises(Ended):
        wait()
    shield.end()


def test_work_that_is_over_cannot_be_ended() -> None:
    shield = Shield(Ended)
    shield.begin("work")
    shield.end()
    assert not shield.raise_in("work")
    shield.begin("next")
    with shield:
        pass
    shield.end()
