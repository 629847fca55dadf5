"""A breakpoint on every rank of a large mesh: what it costs to see all, to ask all, to let all go.

    python -m tests.benchmarks.breakpoints --ranks 1000

Each figure is one call of `monarch.debug` (the least of three, where it can be said thrice): wall
time, and CPU time of this program.
"""

from __future__ import annotations

import argparse
import queue
import time
from collections.abc import Callable
from typing import Any

from monarch.actor import this_host
from monarch.config import configure
from monarch.debug import attach, cast, resume, waiting
from monarch.observe import RankPaused, on_change
from tests.integration.debugging import Stepper


def timed(name: str, call: Callable[[], Any], times: int = 3) -> Any:
    """Print what it takes; what it gave last."""
    taken: list[tuple[float, float]] = []
    found = None
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        found = call()
        taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = min(taken)
    print(f"{name:36} {wall * 1e3:10.1f} ms   CPU {cpu * 1e3:8.1f} ms", flush=True)
    return found


def main() -> None:
    """Pause all, and do to all what people do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    ranks = parser.parse_args().ranks
    configure(startup_timeout="10m")  # a machine with few cores
    procs = this_host().spawn_procs({"gpus": ranks}, name="workers")
    steppers = procs.spawn("steppers", Stepper)
    steppers.ping.call().get(timeout=600)
    everywhere = tuple(range(ranks))
    stopped: queue.SimpleQueue[RankPaused] = queue.SimpleQueue()

    def heard(change: object) -> None:
        if isinstance(change, RankPaused):
            stopped.put(change)

    end = on_change(heard)
    begun = time.perf_counter()
    answer = steppers.step.call(5, everywhere)
    for _ in range(ranks):
        stopped.get()
    end()
    print(f"{ranks} ranks paused after {time.perf_counter() - begun:.1f} s", flush=True)
    found = timed("list", waiting)
    assert len(found) == ranks
    timed("list as text", lambda: str(found))
    assert len(timed("one command to all", lambda: cast("p doubled")).groups()) == 1
    timed("a step of all", lambda: cast("next"), times=1)

    def console() -> None:
        with attach(f"workers[gpus={ranks // 2}]") as one:
            assert one.send("p doubled") == "10\n"

    timed("attach to one, ask, detach", console)
    timed("continue all", resume, times=1)
    assert answer.get(timeout=600).values() == [110] * ranks
    assert not waiting()
    procs.stop().get(timeout=600)


if __name__ == "__main__":
    main()
