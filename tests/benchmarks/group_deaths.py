"""How soon the ranks of a gloo group hear of a death, and whether all of them do.

    python -m tests.benchmarks.group_deaths [--deaths 200] [--load 4] [--numbers 1000]

Each death is of the last of four ranks, by SIGKILL, in a tight loop of `all_reduce`. `--load` is a
number of processes that keep a core busy beside them. Seconds from the kill to the error of each
rank that lives. A rank that has none after 30 s counts as one that never hears of the death.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import monarch.actor
from monarch.actor import Actor, ActorError, ProcMesh, endpoint, this_host

RANKS, VICTIM = 4, 3
PATIENCE_S = 30.0


class Summer(Actor):
    """A rank that sums until a collective fails."""

    @endpoint
    def pid(self) -> int:
        """The number of its process."""
        return os.getpid()

    @endpoint
    def sum_on(self, count: int) -> float:
        """The time, by the clock of all processes of the host, at which a collective has failed."""
        import torch
        import torch.distributed as dist

        numbers = torch.ones(count)
        try:
            while True:
                dist.all_reduce(numbers)
                numbers.fill_(1)
        except RuntimeError:
            return time.monotonic()


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep cores busy with that many processes."""
    running = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def one_death(procs: ProcMesh, count: int, chance: random.Random) -> list[float | None]:
    """The seconds until each rank that lives has heard; None: it has not."""
    procs.init_process_group()
    summers = procs.spawn("summers", Summer)
    pids = summers.pid.call().get().values()
    calls = [summers.slice(gpus=rank).sum_on.call_one(count) for rank in range(RANKS)]
    # At any point of a collective.
    threading.Event().wait(0.3 + chance.random() * 0.2)
    killed = time.monotonic()
    os.kill(list(pids)[VICTIM], signal.SIGKILL)
    found: list[float | None] = []
    for call in calls[:VICTIM]:
        try:
            found.append(call.get(PATIENCE_S) - killed)
        except ActorError:
            found.append(time.monotonic() - killed)
        except TimeoutError:
            found.append(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--load", type=int, default=4)
    parser.add_argument("--numbers", type=int, default=1000)
    asked = parser.parse_args()
    monarch.actor.unhandled_fault_hook = lambda _failure: None
    chance, heard = random.Random(7), list[float]()
    never = 0
    with busy(asked.load):
        for number in range(asked.deaths):
            procs = this_host().spawn_procs(
                {"gpus": RANKS}, name=f"m{number}", preload=["torch", "torch.distributed"]
            )
            for each in one_death(procs, asked.numbers, chance):
                if each is None:
                    never += 1
                else:
                    heard.append(each)
            procs.kill("the next one").get(PATIENCE_S)
    heard.sort()
    print(f"{asked.deaths} deaths beside {asked.load} busy processes: {never} ranks never hear")
    print(
        f"median {statistics.median(heard) * 1e3:.0f} ms, "
        f"99 of 100 {heard[int(len(heard) * 0.99)] * 1e3:.0f} ms, longest {heard[-1] * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main()
