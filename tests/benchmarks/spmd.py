"""torchrun beside `monarch torchrun`: the time to the first step, and of an all_reduce.

    python -m tests.benchmarks.spmd [--ranks 8] [--rounds 3]

Medians of the rounds, in seconds. *To the first step* is from the command to the end of the
first all_reduce on rank 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from monarch.spmd import torchrun

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist

folder, what = sys.argv[1:3]
dist.init_process_group("gloo")
total = torch.ones(4)
dist.all_reduce(total)
rank = dist.get_rank()

def note(name, value):
    if rank == 0:
        with open(os.path.join(folder, name), "w") as file:
            file.write(repr(value))

note("first", time.time())
if what == "reduce":
    big = torch.ones(1 << 20)
    dist.all_reduce(big)
    began = time.perf_counter()
    for _ in range(10):
        dist.all_reduce(big)
    note("reduce", (time.perf_counter() - began) / 10)
dist.destroy_process_group()
"""


def shell(*command: str) -> Callable[[list[str]], None]:
    """A run by a command of its own."""

    def run(words: list[str]) -> None:
        path = os.pathsep.join(p for p in sys.path if p)
        subprocess.run(
            [*command, *words], check=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    return run


def measured(run: Callable[[list[str]], None], ranks: int, rounds: int) -> tuple[float, float]:
    """Seconds to the first step, and of an all_reduce of 4 MiB."""
    first: list[float] = []
    reduce: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        for _ in range(rounds):
            began = time.time()
            run(["--nproc-per-node", str(ranks), str(script), folder, "reduce"])
            first.append(float(Path(folder, "first").read_text()) - began)
            reduce.append(float(Path(folder, "reduce").read_text()))
    return statistics.median(first), statistics.median(reduce)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ways: dict[str, Callable[[list[str]], None]] = {
        "torchrun": shell(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        "monarch torchrun": shell(sys.executable, "-m", "monarch", "torchrun"),
        "from a program, first": torchrun,
    }
    print(f"{given.ranks} ranks".ljust(26), "to the first step", "all_reduce of 4 MiB", sep="  ")
    for name, run in ways.items():
        rounds = 1 if run is torchrun else given.rounds
        first, reduce = measured(run, given.ranks, rounds)
        print(name.ljust(26), f"{first:17.2f}", f"{reduce:19.4f}", sep="  ")
    first, reduce = measured(torchrun, given.ranks, given.rounds)
    print("from a program, later".ljust(26), f"{first:17.2f}", f"{reduce:19.4f}", sep="  ")


if __name__ == "__main__":
    main()
