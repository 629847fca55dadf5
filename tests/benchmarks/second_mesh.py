"""What a second mesh costs, and where: CPU of who has a part in it, pages that ranks write to.

    python -m tests.benchmarks.second_mesh [--ranks 8] [--rounds 30]

Linux. A page that a rank is the first to write to since its fork is copied, which `faults` counts.
Medians, and the least of all rounds in brackets; times depend on what else runs, faults do not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from monarch.actor import Actor, endpoint, this_host


class Counter(Actor):
    """Counts."""

    def __init__(self) -> None:
        self.n = 0

    @endpoint
    def add(self, x: int) -> int:
        self.n += x
        return self.n

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def cpu_ms(processes: Iterable[int]) -> float:
    """Of all their threads, since they began."""
    clocks = (
        task.read_text().split()[0]
        for process in processes
        for task in Path(f"/proc/{process}/task").glob("*/schedstat")
    )
    return sum(map(int, clocks)) / 1e6


def faults(process: int) -> int:
    """Minor page faults since it began."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[7])


def one_round(ranks: int, roles: dict[str, list[int]]) -> dict[str, float]:
    """Spawn a mesh, have its first answer, stop it."""
    before = {role: cpu_ms(pids) for role, pids in roles.items()}
    began = time.perf_counter()
    procs = this_host().spawn_procs({"gpus": ranks})
    counter = procs.spawn("counter", Counter)
    counter.add.call(1).get()
    found = {"wall ms": 1e3 * (time.perf_counter() - began)}
    found |= {f"CPU of the {role}, ms": cpu_ms(p) - before[role] for role, p in roles.items()}
    pids = counter.pid.call().get().values()
    found["CPU of the ranks, ms"] = cpu_ms(pids)
    found["faults a rank"] = statistics.mean(map(faults, pids))
    began = time.perf_counter()
    procs.stop().get()
    found["stop, ms"] = 1e3 * (time.perf_counter() - began)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    began = time.perf_counter()
    first = this_host().spawn_procs({"gpus": options.ranks})
    first.spawn("counter", Counter).add.call(1).get()
    print(f"first mesh: {1e3 * (time.perf_counter() - began):.1f} ms")
    (agent,) = psutil.Process().children()
    (zygote,) = agent.children()
    roles = {"client": [os.getpid()], "agent": [agent.pid], "zygote": [zygote.pid]}
    rounds = [one_round(options.ranks, roles) for _ in range(options.rounds)]
    for what in rounds[0]:
        values = [each[what] for each in rounds]
        print(f"{what:24} {statistics.median(values):10,.2f} ({min(values):,.2f})", flush=True)
    first.stop().get()


if __name__ == "__main__":
    main()
