"""How the cost of a mesh grows with its processes: spawn, call and stop, on this host.

    python -m tests.benchmarks.mesh_growth [64 1024 ...] [--rounds 3]

A row for each number of processes: until the first answer of all of them, a call to all (the least
of 20), and `stop` until every process is gone. The best of the rounds, each with a new mesh.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import TypeVar

from monarch.actor import Actor, endpoint, shutdown_context, this_host

CALLS = 20
R = TypeVar("R")


class Process(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def seconds(run: Callable[[], R]) -> tuple[float, R]:
    """How long that takes, and its result."""
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def measure(count: int) -> tuple[float, float, float]:
    """Seconds for a new mesh of that many processes: its first answers, a call, its end."""
    begin = time.perf_counter()
    procs = this_host().spawn_procs({"gpus": count})
    actors = procs.spawn("processes", Process)
    pids = set(actors.pid.call().get().values())
    spawned = time.perf_counter() - begin
    assert len(pids) == count
    call = min(seconds(lambda: actors.pid.call().get())[0] for _ in range(CALLS))
    stopped, _ = seconds(lambda: procs.stop().get())
    return spawned, call, stopped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[64, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    measure(1)  # starts the session
    print("procs   first answers    call all        stop")
    for count in given.counts:
        rounds = [measure(count) for _ in range(given.rounds)]
        best = [min(times) for times in zip(*rounds, strict=True)]
        print(f"{count:5}  {best[0]:12.3f} s  {1000 * best[1]:7.1f} ms  {best[2]:8.3f} s")
    shutdown_context(reason="measured")


if __name__ == "__main__":
    main()
