"""From the SIGKILL of one of 8 ranks to a mesh that works again, in four ways.

    python -m tests.benchmarks.recovery [--peer PEER_PYTHON] [--rounds 5] [--ranks 8]

    restarted   the mesh has restart="on-failure": one rank is started again, in its place
    respawned   the mesh is stopped and spawned anew, on the same host, in the same program
    all anew    the program ends, and is run from the beginning
    peer        the same as the last, under torchmonarch 0.7.0 (PEER_PYTHON), whose default for a
                death that nobody handles is to end the program

A mesh works again when every rank has answered. Each time counts from the kill; that of a program
which is run anew has its end in it, and all that it does until every rank has answered. Rounds are
taken in turn, and the median is told.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

PATIENCE_S = 300.0
# Runs under the peer too: nothing but what both have.
PROGRAM = """
import json, os, sys, time
from monarch.actor import Actor, endpoint, this_host

class Rank(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def step(self) -> int:
        self.steps += 1
        time.sleep(0.001)
        return self.steps

if __name__ == "__main__":
    ranks = this_host().spawn_procs({"gpus": int(sys.argv[1])}).spawn("rank", Rank)
    print(json.dumps([pid for _, pid in ranks.pid.call().get().items()]), flush=True)
    while True:
        ranks.step.call().get()
"""


class Program:
    """It runs until it dies, and says when all ranks have answered."""

    def __init__(self, python: str, path: str, ranks: int) -> None:
        self._process = subprocess.Popen(
            [python, path, str(ranks)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=_environment(python), text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.pids: list[int] = json.loads(self._process.stdout.readline())

    def wait(self) -> None:
        """Until its end."""
        self._process.wait(PATIENCE_S)

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        with self._process:
            pass


def _environment(python: str) -> dict[str, str]:
    if python != sys.executable:  # the peer has its own `monarch`
        return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def program_anew(python: str, path: str, ranks: int) -> float:
    """Seconds from the kill of a rank, over the end of the program, to the next one's answers."""
    first = Program(python, path, ranks)
    begun = time.perf_counter()
    os.kill(first.pids[-1], signal.SIGKILL)
    first.wait()
    second = Program(python, path, ranks)
    took = time.perf_counter() - begun
    first.end()
    second.end()
    return took


def restarted(ranks: int) -> float:
    """One rank in its place."""
    from monarch.actor import SupervisionError, this_host

    procs = this_host().spawn_procs({"gpus": ranks}, restart="on-failure")
    mesh = procs.spawn("rank", _rank_class())
    pids = [pid for _, pid in mesh.pid.call().get().items()]
    begun = time.perf_counter()
    os.kill(pids[-1], signal.SIGKILL)
    while True:
        try:
            if mesh.pid.call().get().values()[-1] != pids[-1]:
                break
        except SupervisionError:
            pass  # it was under way
    took = time.perf_counter() - begun
    procs.stop().get()
    return took


def respawned(ranks: int) -> float:
    """The whole mesh, by hand."""
    from monarch.actor import SupervisionError, this_host

    procs = this_host().spawn_procs({"gpus": ranks})
    mesh = procs.spawn("rank", _rank_class())
    pids = [pid for _, pid in mesh.pid.call().get().items()]
    begun = time.perf_counter()
    os.kill(pids[-1], signal.SIGKILL)
    try:
        while True:
            mesh.step.call().get()
    except SupervisionError:
        procs.stop().get()
    procs = this_host().spawn_procs({"gpus": ranks})
    procs.spawn("rank", _rank_class()).pid.call().get()
    took = time.perf_counter() - begun
    procs.stop().get()
    return took


def _rank_class() -> type:
    names: dict[str, object] = {"__name__": "recovery_program"}
    exec(compile(PROGRAM, "recovery_program.py", "exec"), names)
    found = names["Rank"]
    assert isinstance(found, type)
    found.__module__ = "__main__"  # it travels by value
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", help="an interpreter with torchmonarch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    given = parser.parse_args()
    import tempfile

    import monarch.actor

    monarch.actor.unhandled_fault_hook = lambda failure: None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w") as file:
            file.write(PROGRAM)
        ways: dict[str, Callable[[], float]] = {
            "restarted": lambda: restarted(given.ranks),
            "respawned": lambda: respawned(given.ranks),
            "all anew": lambda: program_anew(sys.executable, path, given.ranks),
        }
        if given.peer:
            ways["peer"] = lambda: program_anew(given.peer, path, given.ranks)
        ways["restarted"]()  # the session begins
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way, measure in ways.items():
                times[way].append(measure())
    best = statistics.median(times["restarted"])
    load = os.getloadavg()[0]
    print(f"{given.ranks} ranks, {given.rounds} rounds, load {load:.1f} on {os.cpu_count()} cores")
    print(f"{'way':12} {'median':>10} {'best':>10} {'worst':>10} {'times':>8}")
    for way, found in times.items():
        middle = statistics.median(found)
        print(f"{way:12} {middle * 1e3:8.1f}ms {min(found) * 1e3:8.1f}ms {max(found) * 1e3:8.1f}ms "
              f"{middle / best:7.1f}x")  # fmt: skip


if __name__ == "__main__":
    main()
