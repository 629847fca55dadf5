"""Looking again before sleeping, where a wait is likely to be short.

Who sleeps lets its processor fall asleep, and that takes longer to wake than a message takes on its
way, most of all in a virtual machine, whose host gives the processor away meanwhile: a call to one
rank takes three times as long if both sides sleep (docs/explanation/performance.md).

So a wait *spins*: it looks, lets others run, and looks again. Only as long as that pays:

- not after a wait that was long, for the next one will be;
- not for longer than its limit;
- not while somebody else wants the processor, or another thread of this process the interpreter:
  then one look takes as long as their turn does. That may be milliseconds, so as many of the next
  waits sleep at once as make it no more than `COST_S` for each. What the host of a virtual machine
  takes is nobody's turn: who sleeps then would only wait for the host once more.

Actors of a mesh that is called again and again wait for each other's turns. Each of their looks is
in vain, and takes a switch or two from those that work, so an idle actor looks ever more rarely
then (`gives_up`). Who calls does not: others' turns are what it waits for.

Runs in: every process, on the thread that holds the baton. Prior art: adaptive mutexes, which spin
while their owner runs; the halt polling of hypervisors.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from itertools import count
from math import inf
from time import perf_counter

from monarch._src.net.local.poll import Poll

CONTENDED_S = 10e-6  # one look takes 2 us if nobody else wants to run
COST_S = 20e-6
FIRST = 32
RAREST = 64  # one wait of so many looks, at least
_let_others_run: Callable[[], None] | None = getattr(os, "sched_yield", None)


def _turns() -> int:
    """How often something else has run in the place of this thread."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_nivcsw + used.ru_nvcsw  # for the processor, and for the interpreter


# Where the system does not tell, each look that takes long counts as somebody's turn.
turns_of_others: Callable[[], int] = (
    _turns if hasattr(resource, "RUSAGE_THREAD") else count().__next__
)


class Spin:
    """One kind of wait of one process: those of its idle actors, say.

    `limit_s`: for how long to look at most; 0: sleep at once.
    """

    __slots__ = ("_clock", "_gives_up", "_in_vain", "_lately_s", "_to_skip", "_turns", "_yield",
                 "limit_s")  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        let_others_run: Callable[[], None] | None = _let_others_run,
        turns: Callable[[], int] = turns_of_others,
        *,
        gives_up: bool = False,
    ) -> None:
        """`gives_up`: look half as often each time that others wanted to run."""
        self.limit_s = 0.0
        self._gives_up = gives_up
        self._in_vain = 1  # doubled each time in a row
        self._lately_s = inf  # how long the last wait took
        # How many waits sleep at once, since others wanted to run. They do where a process begins:
        # the rest of its mesh does so too.
        self._to_skip = FIRST
        self._clock = clock
        self._yield = let_others_run
        self._turns = turns

    def wait(self, poll: Poll, timeout_s: float | None) -> list[tuple[int, int]]:
        """What `poll.poll(timeout_s)` finds; may take `limit_s` longer.

        If it is interrupted, what was found is found again.
        """
        limit, let_others_run, clock = self.limit_s, self._yield, self._clock
        if not limit or let_others_run is None:
            return poll.poll(timeout_s)
        if self._to_skip:
            self._to_skip -= 1
            return poll.poll(timeout_s)
        began = now = clock()
        if self._lately_s <= limit and (timeout_s is None or timeout_s > limit):
            until, turns = began + limit, -1
            while now < until:
                found = poll.poll(0)
                if found:
                    self._lately_s = limit - (until - now)
                    self._in_vain = 1
                    return found
                if turns < 0:
                    turns = self._turns()
                let_others_run()
                before, now = now, clock()
                if now - before > CONTENDED_S:
                    if self._turns() != turns:
                        self._to_skip = int((now - before) / COST_S)
                        if self._gives_up:
                            self._in_vain = min(2 * self._in_vain, RAREST)
                            self._to_skip = max(self._to_skip, self._in_vain - 1)
                        break
                    until += now - before - CONTENDED_S
        found = poll.poll(timeout_s)
        self._lately_s = clock() - began
        return found
