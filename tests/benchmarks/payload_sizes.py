"""Echo, broadcast and scatter by the size of the argument; where shared memory begins to pay.

    python -m tests.benchmarks.payload_sizes [--kind bytes] [--rounds 3] [--thresholds 16,132,16384]
                                             [--peer PEER_PYTHON]

*Echo* is one rank that returns its argument. *Broadcast* calls 4 ranks with one value, *scatter*
with a value for each; both return a length. Each figure is the median of its calls, the best of
the rounds, in microseconds, with its ratio to the row of 4 KiB.

`--thresholds` takes sizes in KiB, and compares copies of the package whose `SEGMENT_FROM` is that
size; one of 16384 puts none of these payloads into a segment. `SEGMENT_FROM` is to be the size from
which the column of a small threshold is faster than the column of a large one. The copies take
turns within a round, since other work on the machine changes all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import monarch
from monarch._src.wire import segment_refs

KIBI = 1 << 10
SIZES = [
    256, KIBI, 4 * KIBI, 16 * KIBI, 32 * KIBI, 48 * KIBI, 64 * KIBI, 96 * KIBI, 128 * KIBI,
    192 * KIBI, 256 * KIBI, 512 * KIBI, 1024 * KIBI, 4096 * KIBI,
]  # fmt: skip
BASE = 4 * KIBI
WAYS = ("echo", "broadcast", "scatter")
# Runs under the peer too: nothing but what both have.
PROGRAM = """
import json, os, statistics, sys, time
import numpy as np
from monarch.actor import Actor, endpoint, this_host

class Rank(Actor):
    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def take(self, value) -> int:
        return len(value)

def median_us(call, times):
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(took)

def made(kind, size):
    value = os.urandom(size)
    return value if kind == "bytes" else np.frombuffer(value, np.uint8).copy()

if __name__ == "__main__":
    kind, sizes = sys.argv[1], json.loads(sys.argv[2])
    ranks = this_host().spawn_procs({"gpus": 4}).spawn("ranks", Rank)
    each = [ranks.slice(gpus=rank) for rank in range(4)]
    found = {"echo": {}, "broadcast": {}, "scatter": {}}
    for size in sizes:
        values = [made(kind, size) for _ in each]

        def echo():
            each[0].echo.call_one(values[0]).get()

        def broadcast():
            ranks.take.call(values[0]).get()

        def scatter():
            futures = [rank.take.call_one(value) for rank, value in zip(each, values)]
            for future in futures:
                future.get()

        for call in (echo, broadcast, scatter):
            median_us(call, 20)
            times = max(20, min(200, (64 << 20) // size))
            found[call.__name__][size] = median_us(call, times)
    print("RESULT " + json.dumps(found), flush=True)
    os._exit(0)
"""

Figures = dict[str, dict[str, float]]  # by way and size


def measured(python: str, kind: str, package: Path | None) -> Figures:
    """What the program says under that interpreter, with that package in place of its own."""
    command = [python, "-W", "ignore", "-c", PROGRAM, kind, json.dumps(SIZES)]
    environment = dict(os.environ)
    if package is not None:
        environment["PYTHONPATH"] = str(package)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment,
        cwd=tempfile.gettempdir(),
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise RuntimeError(f"{python}: {done.stderr[-2000:]}")


def with_threshold(threshold: str, into: Path) -> Path:
    """A copy of the package with another `SEGMENT_FROM`, for the path of imports."""
    (own,) = monarch.__path__
    shutil.copytree(own, into / "monarch", ignore=shutil.ignore_patterns("__pycache__"))
    path = into / "monarch" / Path(segment_refs.__file__).relative_to(own)
    assigned = f"SEGMENT_FROM = {int(threshold) << 10}"
    text, count = re.subn(r"^SEGMENT_FROM = .*$", assigned, path.read_text(), flags=re.MULTILINE)
    if count != 1:
        raise RuntimeError(f"{path} assigns SEGMENT_FROM {count} times, not once")
    path.write_text(text)
    return into


def said(size: int) -> str:
    """A size as text."""
    for unit, bytes_each in (("MiB", KIBI * KIBI), ("KiB", KIBI)):
        if size >= bytes_each:
            return f"{size // bytes_each} {unit}"
    return f"{size} B"


def show(found: dict[str, Figures]) -> None:
    """Print a table for each way, with a column for each side."""
    for way in WAYS:
        print(f"\n{way:12}" + "".join(f"{side:>20}" for side in found))
        for size in SIZES:
            row = f"{said(size):12}"
            for figures in found.values():
                took, base = figures[way][str(size)], figures[way][str(BASE)]
                row += f"{took:12,.0f} ({took / base:4.1f})"
            print(row)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=("bytes", "array"), default="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--thresholds", help="KiB, separated by commas", default="")
    parser.add_argument("--peer", help="a Python that has torchmonarch")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, tuple[str, Path | None]] = {}
        for threshold in filter(None, chosen.thresholds.split(",")):
            package = with_threshold(threshold, Path(folder) / threshold)
            sides[f"from {threshold}"] = sys.executable, package
        sides = sides or {"ours": (sys.executable, None)}
        if chosen.peer:
            sides["torchmonarch"] = chosen.peer, None
        found: dict[str, Figures] = {}
        for _ in range(chosen.rounds):
            for side, (python, package) in sides.items():
                best = found.setdefault(side, {way: {} for way in WAYS})
                for way, figures in measured(python, chosen.kind, package).items():
                    for size, took in figures.items():
                        best[way][size] = min(took, best[way].get(size, took))
        show(found)


if __name__ == "__main__":
    main()
