"""The time of queries over the live state, and of a call while they run.

    python -m tests.benchmarks.queries [--ranks 64] [--rounds 20]

Needs the extras `sql` and `stacks`. Medians in milliseconds, with the least of all rounds in
brackets; the first query also starts the process of the engine.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable

from monarch.actor import Actor, endpoint, this_host
from monarch.observe import query

QUERIES = (
    "SELECT state, count(*) FROM procs GROUP BY state",
    "SELECT * FROM procs",
    "SELECT status, count(*) FROM actors GROUP BY status",
    "SELECT * FROM actors WHERE proc_rank = 3",
    "SELECT endpoint, sum(calls), max(max_s) FROM endpoints WHERE side = 'callee' GROUP BY ALL",
    "SELECT c.rank, m.status FROM calls c JOIN messages m ON m.call = c.call AND m.rank = c.rank",
    "SELECT mesh, rank, text FROM log_lines WHERE rank = 3 LIMIT 100",
    "SELECT count(*) FROM log_lines",
)  # fmt: skip
STACKS = "SELECT function, count(*) FROM frames GROUP BY function"


class Worker(Actor):
    """Answers, and writes lines."""

    @endpoint
    def step(self) -> int:
        return 1

    @endpoint
    def say(self, lines: int) -> None:
        for number in range(lines):
            print(f"line {number} of some length, as programs write them")


def timed(rounds: int, run: Callable[[], object]) -> str:
    """Median and minimum in milliseconds."""
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - began))
    return f"{statistics.median(times):8.1f} [{min(times):.1f}]"


def whole(sql: str) -> object:
    """Run a query whose answer must not be partial."""
    found = query(sql, 30.0)
    assert not found.missing, found.missing
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    mesh = this_host().spawn_procs({"gpus": options.ranks}, name="workers")
    workers = mesh.spawn("workers", Worker)
    workers.say.call(2 * 10_000 // options.ranks).get()
    one = workers.slice(gpus=0)
    print(f"{options.ranks} ranks, milliseconds: median [least]")
    print(f"{timed(1, lambda: whole('SELECT 1'))}  first query")
    for sql in QUERIES:
        print(f"{timed(options.rounds, lambda: whole(sql))}  {sql}")  # noqa: B023  runs at once
    print(f"{timed(3, lambda: whole(STACKS))}  {STACKS}")
    call = lambda: one.step.call_one().get()  # noqa: E731
    print(f"{timed(200, call)}  a call, nothing else runs")
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            whole("SELECT * FROM endpoints")

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        print(f"{timed(200, call)}  a call, while another thread queries all ranks in a loop")
    finally:
        ended.set()
        asker.join()
    mesh.stop().get()


if __name__ == "__main__":
    main()
