"""A wait looks before it sleeps: for so long, after short waits, while nobody else wants to run."""

from __future__ import annotations

import select
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from monarch._src.net.local.poll import READ
from monarch._src.net.local.spin import (
    CONTENDED_S,
    COST_S,
    FIRST,
    RAREST,
    Spin,
    turns_of_others,
)

LIMIT_S, LOOK_S, LONG_S = 100e-6, 2e-6, 1.0
START = 1000.0
FOUND = [(7, READ)]


class Machine:
    """A clock, a poll and a processor. Something is found from `due` on."""

    def __init__(self) -> None:
        self.now = START
        self.due = 0.0
        self.looks = 0
        self.sleeps: list[float | None] = []
        self.look_s = LOOK_S
        self.turns = 7  # of others
        self.is_virtual = False  # its host takes what a look takes too long

    def turns_of_others(self) -> int:
        return self.turns

    def clock(self) -> float:
        return self.now

    def let_others_run(self) -> None:
        self.now += self.look_s
        self.turns += self.look_s > CONTENDED_S and not self.is_virtual

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        if timeout != 0:
            self.sleeps.append(timeout)
            until = self.due if timeout is None else min(self.due, self.now + timeout)
            self.now = max(self.now, until)
        else:
            self.looks += 1
        return FOUND if self.now >= self.due else []

    def wait(self, spin: Spin, takes_s: float, timeout_s: float | None = None) -> bool:
        """Whether a wait for what comes after so long slept."""
        self.due = self.now + takes_s
        self.looks, self.sleeps = 0, []
        poll: Any = self
        assert spin.wait(poll, timeout_s) == (FOUND if self.now >= self.due else [])
        return bool(self.sleeps)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def spin(machine: Machine) -> Spin:
    made = Spin(machine.clock, machine.let_others_run, machine.turns_of_others)
    made.limit_s = LIMIT_S
    for _ in range(FIRST + 1):
        assert machine.wait(made, 50e-6), "many begin at once, and nothing is known of the first"
    machine.now = START
    return made


def test_what_comes_soon_is_found_without_a_sleep(machine: Machine, spin: Spin) -> None:
    assert not machine.wait(spin, 50e-6)
    assert machine.now == pytest.approx(START + 50e-6, abs=2 * LOOK_S)


def test_what_is_there_is_found_at_the_first_look(machine: Machine, spin: Spin) -> None:
    assert not machine.wait(spin, 0.0)
    assert machine.looks == 1


def test_it_sleeps_after_the_limit(machine: Machine, spin: Spin) -> None:
    assert machine.wait(spin, LONG_S)
    assert machine.looks == pytest.approx(LIMIT_S / LOOK_S, abs=2)
    assert machine.sleeps == [None]


def test_after_a_long_wait_it_sleeps_at_once_until_one_was_short(
    machine: Machine, spin: Spin
) -> None:
    machine.wait(spin, LONG_S)
    assert machine.wait(spin, LONG_S)
    assert machine.looks == 0
    assert machine.wait(spin, 50e-6), "which it cannot know before"
    assert not machine.wait(spin, 50e-6)


def test_it_sleeps_as_soon_as_somebody_else_wants_the_processor(
    machine: Machine, spin: Spin
) -> None:
    machine.look_s = 2 * CONTENDED_S
    assert machine.wait(spin, 80e-6)
    assert machine.looks == 1


def test_the_longer_the_turn_of_others_took_the_more_waits_sleep_at_once(
    machine: Machine, spin: Spin
) -> None:
    for turn_s in (100e-6, 3e-3):
        machine.look_s = turn_s
        assert not machine.wait(spin, 0.0)
        machine.wait(spin, 80e-6)
        machine.look_s = LOOK_S
        machine.wait(spin, 0.0)
        slept = 1
        while machine.wait(spin, 50e-6) and not machine.looks:
            slept += 1
        assert slept == pytest.approx(turn_s / COST_S, abs=2)
        assert not machine.wait(spin, 50e-6), "and then it looks again"


def slept_between_looks(machine: Machine, spin: Spin) -> int:
    slept = 0
    while machine.wait(spin, 50e-6) and not machine.looks:
        slept += 1
    return slept


@pytest.fixture
def idle(machine: Machine) -> Spin:
    made = Spin(machine.clock, machine.let_others_run, machine.turns_of_others, gives_up=True)
    made.limit_s = LIMIT_S
    assert slept_between_looks(machine, made) == FIRST + 1
    return made


def test_who_gives_up_looks_half_as_often_each_time_that_others_want_to_run(
    machine: Machine, idle: Spin
) -> None:
    machine.look_s = 1.5 * CONTENDED_S
    machine.wait(idle, 50e-6)
    assert [slept_between_looks(machine, idle) for _ in range(7)] == [1, 3, 7, 15, 31, 63, 63]
    assert RAREST == 64


def test_and_as_often_as_before_once_nobody_wanted_to(machine: Machine, idle: Spin) -> None:
    machine.look_s = 1.5 * CONTENDED_S
    machine.wait(idle, 50e-6)
    for _ in range(4):
        slept_between_looks(machine, idle)
    machine.look_s = LOOK_S
    assert slept_between_looks(machine, idle) == 31
    assert slept_between_looks(machine, idle) == 0, "and that look found something"
    machine.look_s = 1.5 * CONTENDED_S
    machine.wait(idle, 50e-6)
    assert slept_between_looks(machine, idle) == 1


def test_who_does_not_give_up_goes_on_looking(machine: Machine, spin: Spin) -> None:
    machine.look_s = 1.5 * CONTENDED_S
    machine.wait(spin, 50e-6)
    assert [slept_between_looks(machine, spin) for _ in range(5)] == [0] * 5


def test_what_a_host_takes_is_no_reason_to_sleep_and_no_part_of_the_limit(
    machine: Machine, spin: Spin
) -> None:
    machine.is_virtual = True
    machine.look_s = 3 * LIMIT_S
    for _ in range(2):  # the first was no long wait
        assert not machine.wait(spin, 2 * LIMIT_S)
        assert machine.looks == 2
    assert machine.wait(spin, LONG_S), "but it sleeps in the end"
    assert machine.looks == pytest.approx(LIMIT_S / CONTENDED_S, abs=2)


def test_where_the_system_does_not_tell_each_long_look_is_the_turn_of_somebody(
    machine: Machine,
) -> None:
    spin = Spin(machine.clock, machine.let_others_run, count().__next__)
    spin.limit_s = LIMIT_S
    for _ in range(FIRST + 1):
        machine.wait(spin, 50e-6)
    machine.is_virtual, machine.look_s = True, 2 * CONTENDED_S
    assert machine.wait(spin, 80e-6)
    assert machine.looks == 1


def test_who_gives_its_processor_away_is_told_of_a_turn() -> None:
    before = turns_of_others()
    select.poll().poll(1)  # nothing will come
    assert turns_of_others() > before


def test_a_time_out_that_is_no_longer_than_the_limit_is_slept(machine: Machine, spin: Spin) -> None:
    assert machine.wait(spin, LONG_S, timeout_s=LIMIT_S)
    assert machine.looks == 0
    assert machine.sleeps == [LIMIT_S]


@pytest.mark.parametrize(
    ("limit_s", "let_others_run"), [(0.0, lambda: None), (LIMIT_S, None)], ids=["off", "no yield"]
)
def test_it_sleeps_at_once_where_it_is_not_to_look_or_cannot(
    machine: Machine, limit_s: float, let_others_run: Callable[[], None] | None
) -> None:
    spin = Spin(machine.clock, let_others_run)
    spin.limit_s = limit_s
    assert machine.wait(spin, 50e-6)
    assert machine.looks == 0
