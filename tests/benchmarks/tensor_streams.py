"""Work beside computation: on the stream of the computation, and on a stream of its own.

    python -m tests.benchmarks.tensor_streams [--ranks 2] [--steps 20] [--rounds 3]

A step computes products of matrices on every rank, and does something with a tensor of 8 MiB:
`write` saves it to a file and waits for the disk; `reduce` adds it up over the ranks. The table has
milliseconds for a step, the best of the rounds, which alternate between both ways.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import monarch
from monarch.actor import ProcMesh, this_host

SIZE = 320  # rows of the square matrices
PRODUCTS = 30  # in a step
ELEMENTS = 2 << 20  # float32


def write(tensor: Any, folder: str) -> None:
    """On a rank: save the tensor, and return once it is on the disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(tensor.numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())


def products(square: Any) -> Any:
    """The computation of a step."""
    found = square
    for _ in range(PRODUCTS):
        found = found @ square
    return found


def step_ms(mesh: ProcMesh, steps: int, use: Callable[[Any], None] | None, stream: str) -> float:
    """Milliseconds for a step that computes on `main` and uses a tensor on a stream."""
    other = monarch.Stream(stream)

    def step() -> Any:
        if use is None:
            return products(square)
        if stream == "main":
            use(value)
            return products(square)
        there, borrow = other.borrow(value, mutable=True)
        with borrow:  # until the products are issued: what follows the drop waits for the use
            use(there)
            return products(square)

    with mesh.activate():
        square = torch.eye(SIZE)
        value = torch.ones(ELEMENTS)
        for _ in range(2):  # makes groups, and has torch begin its threads
            last = step()
        monarch.inspect(last)
        begin = time.perf_counter()
        for _ in range(steps):
            last = step()
        monarch.inspect(last[0, 0] + value[0])
        took = time.perf_counter() - begin
    return took / steps * 1000


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=".", help="on the disk that `write` uses")
    given = parser.parse_args()
    mesh = this_host().spawn_procs({"gpus": given.ranks}, name="streams", preload=["torch"])
    save = monarch.remote(write, propagate=lambda tensor, folder: None)
    folder = os.path.abspath(given.folder)
    kinds: dict[str, Callable[[Any], None]] = {
        "write": lambda tensor: save(tensor, folder),
        "reduce": lambda tensor: tensor.reduce_("gpus", "avg"),
    }
    print("| | computation alone | one stream | two streams |\n|---|---|---|---|")
    for name, use in kinds.items():
        alone = min(step_ms(mesh, given.steps, None, "main") for _ in range(given.rounds))
        rounds = [
            [step_ms(mesh, given.steps, use, stream) for stream in ("main", "other")]
            for _ in range(given.rounds)
        ]
        one, two = (min(found) for found in zip(*rounds, strict=True))
        print(f"| {name} | {alone:.1f} ms | {one:.1f} ms | {two:.1f} ms |")
    mesh.stop().get(timeout=60)


if __name__ == "__main__":
    main()
