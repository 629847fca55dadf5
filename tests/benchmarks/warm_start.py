"""From spawn to the first answer of an actor that uses torch, for a first and a second mesh.

    python -m tests.benchmarks.warm_start [--ranks 8] [--rounds 3] [--torchmonarch PYTHON]

Each side runs in a process of its own, in turn, and the least of the rounds is printed, with the
private memory of the rank that has most of it:

- `auto`: this runtime as it is; ranks are forked with what the client has imported;
- `none`: this runtime with `preload=()`: each rank imports torch for itself;
- `torchmonarch`: that interpreter, with `torchmonarch` 0.7.0 and `torch` 2.13.0 installed;
- `plain`: this runtime with a client and an actor that do not import torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Any

from monarch.actor import Actor, endpoint, this_host

SIDES = ("auto", "none", "torchmonarch", "plain")


def private_mib() -> float:
    """The memory that this process shares with no other."""
    with open("/proc/self/smaps_rollup") as file:
        lines = [line.split() for line in file if line.startswith("Private_")]
    return sum(int(words[1]) for words in lines) / 1024


class Plain(Actor):
    @endpoint
    def compute(self) -> float:
        return private_mib()


class WithTorch(Actor):
    @endpoint
    def compute(self) -> float:
        import torch

        (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()
        return private_mib()


def measure(side: str, ranks: int) -> None:
    """Print the seconds of both meshes and the memory; runs in a process of its own."""
    if side != "plain":
        import torch

        globals()["torch"] = torch  # the program names it
    kind: Any = Plain if side == "plain" else WithTorch
    figures: list[float] = []
    for name in ("first", "second"):
        begin = time.perf_counter()
        procs = this_host().spawn_procs({"gpus": ranks}, name=name)
        found = procs.spawn("actors", kind).compute.call().get()
        figures += [time.perf_counter() - begin, max(value for _, value in found.items())]
    print(*figures, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torchmonarch", help="an interpreter with torchmonarch installed")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        measure(options.side, options.ranks)
        return
    sides = [side for side in SIDES if side != "torchmonarch" or options.torchmonarch]
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side in sides:
            of_peer = side == "torchmonarch"
            python = options.torchmonarch if of_peer else sys.executable
            # Run as a file, so that the peer's interpreter imports nothing of this checkout.
            words = [python, __file__, "--side", side, "--ranks", str(options.ranks)]
            env = dict(os.environ, **({"MONARCH_PRELOAD": "none"} if side == "none" else {}))
            done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
            found[side].append([float(word) for word in done.stdout.split()[-4:]])
    print(f"{options.ranks} ranks{'first mesh':>16}{'second mesh':>14}{'private memory':>17}")
    for side, rounds in found.items():
        first, first_mib, second, second_mib = (min(column) for column in zip(*rounds, strict=True))
        print(f"{side:12}{first:10.2f} s{second:12.2f} s{first_mib:9.1f} and {second_mib:.1f} MiB")


if __name__ == "__main__":
    main()
