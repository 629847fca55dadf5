"""How busy a map keeps its ranks: 1,000 tasks of 5 ms on 8 ranks, which sleep or compute.

    python -m tests.benchmarks.map_utilisation [RANKS] [TASKS] [MILLISECONDS]

A rank is busy while it runs the function, by its own clock. Tasks sleep, so that eight ranks can be
busy on fewer cores. `from begin to end` has the spawning of the actors in it, and the last tasks,
when some ranks have no more to do.
"""

from __future__ import annotations

import os
import statistics
import sys
from time import monotonic, sleep

from monarch.actor import this_host

ROUNDS = 7


def task(milliseconds: float) -> tuple[int, float]:
    """Sleep; returns the process, and how long it took here."""
    began = monotonic()
    sleep(milliseconds / 1000)
    return os.getpid(), monotonic() - began


def main() -> None:
    ranks, tasks, milliseconds = 8, 1000, 5.0
    if len(sys.argv) > 1:
        ranks = int(sys.argv[1])
    if len(sys.argv) > 2:
        tasks = int(sys.argv[2])
    if len(sys.argv) > 3:
        milliseconds = float(sys.argv[3])
    mesh = this_host().spawn_procs({"gpus": ranks}, name="workers")
    mesh.map(task, [0.0] * ranks)
    busy: list[float] = []
    for size in (None, 1):
        for _ in range(ROUNDS):
            began = monotonic()
            found = mesh.map(task, [milliseconds] * tasks, chunk_size=size)
            took = monotonic() - began
            assert len({pid for pid, _ in found}) == ranks
            busy.append(sum(seconds for _, seconds in found) / (ranks * took))
        best, middle = max(busy), statistics.median(busy)
        how = "chunks by the time of items" if size is None else f"chunks of {size}"
        print(
            f"{tasks:,} tasks of {milliseconds:g} ms on {ranks} ranks, {how}: busy "
            f"{middle:.1%} of the time from begin to end, {best:.1%} at best"
        )
        busy = []
    mesh.stop().get()


if __name__ == "__main__":
    main()
