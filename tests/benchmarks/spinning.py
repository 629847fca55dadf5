"""A call where nobody looks before sleeping, where callers do, and where both sides do.

    python -m tests.benchmarks.spinning [ROUNDS]

The three take turns in one run, since a machine is never the same twice. Medians of rounds of 300
calls each (us), and the best round.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable

from monarch._src.actor.runtime import runtime
from monarch.actor import Actor, endpoint, this_host

RANKS, CALLS, WARM = 8, 300, 30
LIMIT_S = 200e-6
WAYS = {"nobody": (0.0, 0.0), "callers": (LIMIT_S, 0.0), "both": (LIMIT_S, LIMIT_S)}


def set_spin(limit_s: float) -> None:
    """How long waits of this process look from now on."""
    runtime().node.leader.spin(limit_s)


class Adder(Actor):
    """Adds one."""

    @endpoint
    def add(self, x: int) -> int:
        return x + 1

    @endpoint
    def spin(self, limit_s: float) -> None:
        set_spin(limit_s)


class AsyncAdder(Actor):
    """The same in an event loop."""

    @endpoint
    async def add(self, x: int) -> int:
        return x + 1


def median_us(call: Callable[[], object]) -> float:
    """Of one round."""
    for _ in range(WARM):
        call()
    took: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return 1e6 * statistics.median(took)


def main(rounds: int) -> None:
    """Measure and print."""
    procs = this_host().spawn_procs({"gpus": RANKS})
    adders, in_loops = procs.spawn("adders", Adder), procs.spawn("in_loops", AsyncAdder)
    one, in_loop = adders.slice(gpus=0), in_loops.slice(gpus=0)
    calls: dict[str, Callable[[], object]] = {
        "one rank": lambda: one.add.call_one(1).get(),
        "async": lambda: in_loop.add.call_one(1).get(),
        f"{RANKS} ranks": lambda: adders.add.call(1).get(),
    }
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for way, (here_s, there_s) in WAYS.items():
            adders.spin.call(there_s).get()
            set_spin(here_s)
            for name, call in calls.items():
                found[way, name].append(median_us(call))
    print(f"{'who looks':10}" + "".join(f"{name:>22}" for name in calls))
    for way in WAYS:
        cells = (found[way, name] for name in calls)
        print(f"{way:10}" + "".join(
            f"{statistics.median(took):12.0f} (best {min(took):3.0f})" for took in cells
        ))  # fmt: skip
    procs.stop().get()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
