"""Polling before sleeping, where a wait is likely to be short.

When a thread sleeps, its processor may go to sleep too. It then takes longer to wake than a message
takes to arrive, most of all in a virtual machine, whose host gives the processor away meanwhile: a
call to one rank takes three times as long if both sides sleep (docs/explanation/performance.md).

So a wait *spins*: it polls, yields the processor, and polls again. It does so only where that pays:

- not after a long wait, because the next one will be long too;
- not for longer than its limit;
- not while another process wants the processor, or another thread of this process the interpreter:
  then one poll takes as long as their turn, which may be milliseconds. So many of the next waits
  sleep at once that the loss is at most `COST_S` for each wait. Time that the host of a virtual
  machine takes does not count: a sleeping thread would only wait for the host once more.

The actors of a mesh that is called again and again wait for each other's turns. Each of their polls
is in vain, and costs the working actors a switch or two, so an idle actor then polls ever more
rarely (`gives_up`). A caller does not, because it waits for those very turns.

Runs in: every process, on the receiving thread. Prior art: adaptive mutexes, which spin while their
owner runs; the halt polling of hypervisors.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from itertools import count
from math import inf
from time import perf_counter

from monarch._src.net.local.poll import Poll

CONTENDED_S = 10e-6  # one poll takes 2 us on a processor that is free
COST_S = 20e-6
FIRST = 32
RAREST = 64  # at least one wait in so many polls
_let_others_run: Callable[[], None] | None = getattr(os, "sched_yield", None)


def _turns() -> int:
    """How often the processor or the interpreter has switched from this thread to another."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_nivcsw + used.ru_nvcsw  # of the processor, and of the interpreter


# Where the system does not count switches, each slow poll counts as one.
turns_of_others: Callable[[], int] = (
    _turns if hasattr(resource, "RUSAGE_THREAD") else count().__next__
)


class Spin:
    """The policy for one kind of wait in this process, such as that of idle actors.

    `limit_s`: for how long to poll at most; 0: sleep at once.
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
        """`gives_up`: halve the frequency of polling each time that other threads want to run."""
        self.limit_s = 0.0
        self._gives_up = gives_up
        self._in_vain = 1  # doubled each time in a row
        self._lately_s = inf  # how long the last wait took
        # How many waits still sleep at once because other threads wanted to run. The first ones do:
        # the other processes of the mesh start at the same time.
        self._to_skip = FIRST
        self._clock = clock
        self._yield = let_others_run
        self._turns = turns

    def wait(self, poll: Poll, timeout_s: float | None) -> list[tuple[int, int]]:
        """As `poll.poll(timeout_s)`; may take `limit_s` longer.

        An interrupted wait loses nothing: the next poll finds the same events.
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
