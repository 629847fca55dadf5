"""The cost of a call while history is kept, and the time of queries over it.

    python -m tests.benchmarks.history [--ranks 64] [--rounds 40]
    python -m tests.benchmarks.history --only queries --ranks 1024

Calls are timed in short series, with and without history in turn, so that other work on the machine
meets both. Memory of a rank: what it shares with no other process, after work that fills the rings
of messages, calls, spans and log records, and after the same work without history. `Python alone`
is `call_path` with and without history: no socket, no other process.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.state.history import HISTORY, MOST_ROWS, History
from monarch.actor import Actor, endpoint, span, this_host
from monarch.observe import query, record
from tests.benchmarks import call_path
from tests.benchmarks.against_peers import private_mib

SERIES = 200
QUERIES = (
    "SELECT endpoint, count(*), avg(ran_s) FROM messages GROUP BY endpoint",
    "SELECT rank, max(ran_s) FROM messages WHERE rank = 3 GROUP BY rank",
    "SELECT count(*) FROM messages WHERE timestamp_us > 4000000000000000",
    "SELECT count(*) FROM sent_messages",
    "SELECT sum(dropped) FROM recordings",
)


class Worker(Actor):
    """Answers."""

    @endpoint
    def step(self) -> int:
        return 1

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fill(self, other: Any, rows: int) -> None:
        """Have every ring of this rank take that many rows."""
        log = logging.getLogger("tests.benchmarks.history")
        log.addHandler(logging.NullHandler())  # so that no line is written
        log.propagate = False
        for number in range(rows):
            other.step.call_one().get()
            with span("train"):
                log.error("step %d of some training, with a loss of %f", number, number / rows)


def series(call: Callable[[], object]) -> float:
    """Microseconds of a call."""
    began = time.perf_counter()
    for _ in range(SERIES):
        call()
    return 1e6 * (time.perf_counter() - began) / SERIES


def calls(rounds: int) -> None:
    """A call to one rank, and one to eight, without and with history."""
    mesh = this_host().spawn_procs({"gpus": 8}, name="workers")
    workers = mesh.spawn("workers", Worker)
    one = workers.slice(gpus=0)
    works: dict[str, Callable[[], object]] = {
        "call_one": lambda: one.step.call_one().get(),
        "call, 8 ranks": lambda: workers.step.call().get(),
    }
    for name, work in works.items():
        series(work)
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * rounds):
            is_on = bool(number % 2)
            record(3600 if is_on else 0)
            times[is_on].append(series(work))
        off, on = (statistics.median(times[which]) for which in (False, True))
        ratios = [b / a for a, b in zip(times[False], times[True], strict=True)]
        print(
            f"{name:16} off {off:8.1f} us, on {on:8.1f} us, median of ratios "
            f"{statistics.median(ratios):.3f}; least: off {min(times[False]):.1f}, "
            f"on {min(times[True]):.1f}"
        )
    record(0)
    mesh.stop().get()


def python_alone() -> None:
    """Both sides of a call without a socket."""
    with tempfile.TemporaryDirectory() as folder:
        ref = ProcsRef(
            call_path.MESH, "workers", ("gpus",), (call_path.RANKS,), folder, "client-1", "host"
        )
        for name, on in (("off", False), ("on", True)):
            HISTORY.clear()
            if on:
                HISTORY.switch_on(3600 * 10**9, MOST_ROWS)
            found = call_path.calling(folder, ref)
            print(name, {key: round(value, 2) for key, value in found.items()}, flush=True)
        HISTORY.clear()
    for which in ("off", "on"):  # it can run once in a process
        subprocess.run([sys.executable, "-m", __spec__.name, "--callee", which], check=True)


def callee(on: bool) -> None:
    """The side of the actor, without a socket."""
    if on:
        HISTORY.switch_on(3600 * 10**9, MOST_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        ref = ProcsRef(
            call_path.MESH, "procs", ("gpus",), (call_path.RANKS,), folder, "client-1", "host"
        )
        found = call_path.called(folder, ref)
        print("on " if on else "off", {key: round(value, 2) for key, value in found.items()})
    sys.stdout.flush()
    os._exit(0)


def memory() -> None:
    """Bytes of full rings of messages and calls."""
    import tracemalloc

    tracemalloc.start()
    history = History()
    history.switch_on(10**12, MOST_ROWS)
    assert history.handled is not None
    assert history.sent is not None
    for number in range(2 * MOST_ROWS):
        at = 10**15 + number * 1000
        history.handled.add((at, 5, "node", 7, number + 10**6, "step", at + 1, at % 9999, False))
    handled = tracemalloc.get_traced_memory()[0]
    for number in range(2 * MOST_ROWS):
        at = 10**15 + number * 1000
        history.sent.add((at, at + 5, number + 10**6, 7, 8, 9, "name", None, "step", False))
    sent = tracemalloc.get_traced_memory()[0] - handled
    tracemalloc.stop()
    print(f"full rings of {MOST_ROWS} rows: messages {handled >> 10} KiB, calls {sent >> 10} KiB")


def rank_memory(rounds: int = 3) -> None:
    """Private memory of a rank without history, and with full rings of all kinds."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds):
        is_on = bool(number % 2)
        record(3600 if is_on else 0)
        mesh = this_host().spawn_procs({"gpus": 2}, name="workers")
        workers = mesh.spawn("workers", Worker)
        one, other = workers.slice(gpus=0), workers.slice(gpus=1)
        one.fill.call_one(other, MOST_ROWS + 100).get()
        for _ in range(MOST_ROWS):
            one.step.call_one().get()
        found[is_on].append(private_mib(one.pid.call_one().get()))
        mesh.stop().get()
    record(0)
    off, on = (statistics.median(found[which]) for which in (False, True))
    print(f"a rank without history {off:.2f} MiB, with full rings {on:.2f}: {on - off:.2f} more")


def queries(ranks: int, rounds: int) -> None:
    """Queries over ranks whose rings of messages hold 200 rows each."""
    mesh = this_host().spawn_procs({"gpus": ranks}, name="workers")
    workers = mesh.spawn("workers", Worker)
    record(3600)
    for _ in range(200):
        workers.step.call().get()
    query("SELECT 1")
    print(f"queries over {ranks} ranks, 200 messages each: median [least]")
    for sql in QUERIES:
        times: list[float] = []
        for _ in range(rounds):
            began = time.perf_counter()
            found = query(sql, 60.0)
            times.append(1e3 * (time.perf_counter() - began))
            assert not found.missing, found.missing
        print(f"{statistics.median(times):8.1f} ms [{min(times):.1f}]  {sql}")
    record(0)
    mesh.stop().get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", choices=("memory", "calls", "queries", "alone"))
    parser.add_argument("--callee", choices=("off", "on"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.callee:
        callee(options.callee == "on")
    for name, run in {
        "memory": lambda: (memory(), rank_memory()),
        "calls": lambda: calls(options.rounds),
        "queries": lambda: queries(options.ranks, max(3, options.rounds // 8)),
        "alone": python_alone,
    }.items():
        if options.only in (None, name):
            run()
            sys.stdout.flush()


if __name__ == "__main__":
    main()
