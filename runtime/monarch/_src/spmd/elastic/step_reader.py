"""Reads the progress of ranks, and kills those that make no step.

Runs in: the thread that drives a training.
Owns: the `StepClock`s of each unit, from its first call on, which end with its procs.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from monarch._src.actor.future import Future
from monarch._src.actor.inspect.agent_client import AgentGoneError
from monarch._src.actor.parts import parts
from monarch._src.actor.runtime import runtime
from monarch._src.errors import ActorError, SupervisionError
from monarch._src.spmd.elastic.actor import StepClock
from monarch._src.spmd.elastic.state.plan import Member
from monarch._src.spmd.elastic.state.step_watch import End, Kill, StepWatch
from monarch._src.spmd.elastic.unit import Unit

log = logging.getLogger("monarch.spmd")
READ_S, LONGEST_READ_S = 0.5, 10.0
STACKS_S = 10.0
KILL_S = 5.0


class Hang(msgspec.Struct, frozen=True):
    """A rank that was killed because it made no step.

    where: the rank, as in `replica0[gpus=1]`. seconds: since its last progress. stacks: the
    positions of all ranks of its mesh at the limit, which tell the ranks that waited for it, or the
    reason why they were not read.
    """

    where: str
    seconds: float
    stacks: str


class StepReader:
    """One for each training that has a limit."""

    def __init__(self, within_s: float, end_groups: Callable[[str], None]) -> None:
        self.hangs: list[Hang] = []
        self._watch = StepWatch(within_s)
        self._end_groups = end_groups
        self._units: dict[int, Unit] = {}
        self._clocks: dict[int, Any] = {}
        self._readings: list[tuple[int, Future[Any]]] = []
        self._read_at = 0.0
        self._every_s = min(max(within_s / 8, READ_S), LONGEST_READ_S)
        self._stacks: dict[int, str] = {}  # by unit
        self._whys: dict[Member, str] = {}

    def begin(self, units: Sequence[Unit], members: Sequence[Member]) -> None:
        """The call begins on these ranks."""
        self._units = {unit.number: unit for unit in units}
        known, self._clocks = self._clocks, {}
        for number, unit in self._units.items():
            clock = known.get(number) or _clock_of(unit)
            if clock is not None:
                self._clocks[number] = clock
        self._readings, self._stacks, self._whys = [], {}, {}
        seen = [member for member in members if member.unit in self._clocks]
        self._watch.begin(seen, time.monotonic())

    def end(self) -> dict[Member, str]:
        """The call has ended on all ranks. Returns why ranks were killed, by member."""
        self._watch.end()
        self._readings = []
        return self._whys

    def look(self, running: Collection[Member]) -> None:
        """Take the readings of the ranks, ask for new ones, and end or kill stuck ranks."""
        now = time.monotonic()
        self._take_readings(now)
        if now - self._read_at >= self._every_s:
            self._read_at = now
            self._ask({member.unit for member in running})
        match self._watch.check(running, now):
            case End(stuck):
                for unit in {member.unit for member in stuck}:
                    self._stacks_of(unit)  # before they leave the place where they are
                places = ", ".join(map(self._where, stuck))
                self._end_groups(f"{places}: no step within {self._watch.within_s:g} s")
            case Kill(stuck):
                for member in stuck:
                    self._kill(member)
            case None:
                pass

    def _ask(self, units: Collection[int]) -> None:
        for unit in units:
            clock = self._clocks.get(unit)
            if clock is None:
                continue
            try:
                asked = list(clock.read.stream())
            except Exception as error:
                log.debug("the steps of unit %d cannot be read: %s", unit, error)  # it is gone
                continue
            self._readings += [(unit, each) for each in asked]

    def _take_readings(self, now: float) -> None:
        left: list[tuple[int, Future[Any]]] = []
        for unit, reading in self._readings:
            if not reading.done:
                left.append((unit, reading))
                continue
            try:
                rank, steps = reading.get(0)
            except (ActorError, SupervisionError) as error:  # it has died, most likely
                log.debug("the steps of a rank of unit %d were not read: %s", unit, error)
                for failure in error.failures:
                    self._watch.on_unknown(Member(unit, failure.rank), now)
                continue
            self._watch.on_steps(Member(unit, rank), steps, now)
        self._readings = left

    def _kill(self, member: Member) -> None:
        unit, where = self._units[member.unit], self._where(member)
        seconds = self._watch.idle_s(member, time.monotonic())
        stacks = self._stacks_of(member.unit)
        log.warning("%s made no step for %.1f s, and is killed\n%s", where, seconds, stacks)
        self._whys[member] = (
            f"{where} made no step for {seconds:.1f} s, and was killed; `hangs` has its stacks"
        )
        self.hangs.append(Hang(where, seconds, stacks))
        try:
            runtime().agent.signal(unit.uid, [member.rank], signal.SIGKILL).get(KILL_S)
        except (TimeoutError, AgentGoneError) as error:
            log.warning("%s was not killed: %s", where, error)  # its host is lost, as it will be

    def _stacks_of(self, unit: int) -> str:
        if unit not in self._stacks:
            self._stacks[unit] = parts().stacks_text(self._units[unit].procs, STACKS_S)
        return self._stacks[unit]

    def _where(self, member: Member) -> str:
        return self._units[member.unit].where(member.rank)


def _clock_of(unit: Unit) -> Any:
    """The clocks of a unit; None if it has lost a rank, whose call then ends too."""
    try:
        clocks: Any = unit.procs.spawn("step_clock", StepClock)
    except (ActorError, SupervisionError) as error:
        log.debug("the steps of %s are not watched: %s", unit.procs.name, error)
        return None
    runtime().ownership.handle_failures(clocks._actors.uid, lambda _failure: True)
    return clocks
