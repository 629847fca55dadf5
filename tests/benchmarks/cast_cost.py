"""What a call to many ranks costs its sender, and how long it takes, by either route.

    python -m tests.benchmarks.cast_cost [--ranks 16 64 256]

`send` is the CPU time of the calling thread until `.call()` has returned, `client` that of the
whole client until the answers are there. Best and median of many, both routes in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time

from monarch._src.actor.deliver import routes
from monarch.actor import Actor, endpoint, this_host

NEVER = 1 << 30


class Counter(Actor):
    """Counts."""

    def __init__(self) -> None:
        self.n = 0

    @endpoint
    def add(self, x: int) -> int:
        self.n += x
        return self.n


def measure(mesh: Counter, rounds: int) -> tuple[float, float, float]:
    """Seconds: sending (median, CPU), the client (mean, CPU), a call (best)."""
    sending: list[float] = []
    best = float("inf")
    cpu = time.process_time()
    for _ in range(rounds):
        began, thread = time.perf_counter(), time.thread_time()
        future = mesh.add.call(1)
        sending.append(time.thread_time() - thread)
        future.get()
        best = min(best, time.perf_counter() - began)
    cpu = time.process_time() - cpu
    return statistics.median(sending), cpu / rounds, best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 64, 256])
    for ranks in parser.parse_args().ranks:
        procs = this_host().spawn_procs({"gpus": ranks})
        mesh = procs.spawn("counter", Counter)
        mesh.add.call(0).get()
        found: dict[str, tuple[float, ...]] = {}
        for _ in range(3):
            for name, least in (("direct", NEVER), ("cast", 1)):
                routes.CAST_FROM = least
                now = measure(mesh, max(10, 1000 // ranks))
                found[name] = tuple(map(min, now, found.get(name, now)))
        for name, (send, client, call) in found.items():
            print(
                f"{ranks:5} ranks {name:7} send {1e6 * send:8.0f} us   "
                f"client {1e3 * client:7.2f} ms   call {1e3 * call:7.2f} ms"
            )
        procs.stop().get()


if __name__ == "__main__":
    main()
