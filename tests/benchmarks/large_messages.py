"""Large messages: there and back, to 8 ranks, and what 2 GiB do to a ping.

    python -m tests.benchmarks.large_messages [--peer PEER_PYTHON] [--rounds 3] [--gibibytes 2]

What both have runs under both interpreters in turn, the best of all rounds told. CPU is that of the
caller and of the rank together, by the kernel's count, which other work on the machine changes less
than it does time. The pings go to an actor beside the one that gets the 2 GiB, from another thread;
memory is what the sender holds more than before at most: its own, and that of its segments. What
the machine alone makes of so many fresh pages is told beside it: the longest ping while a stranger,
of whom this runtime knows nothing, writes as much.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEBI = 1 << 20
# Runs under the peer too: nothing but what both have.
PROGRAM = """
import json, os, resource, sys, time
import numpy as np
from monarch.actor import Actor, endpoint, this_host

MEBI = 1 << 20

def cpu_ms():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (used.ru_utime + used.ru_stime)

class Rank(Actor):
    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def take(self, value) -> int:
        return len(value)

    @endpoint
    def cpu(self) -> float:
        return cpu_ms()

if __name__ == "__main__":
    ranks = this_host().spawn_procs({"gpus": 8}).spawn("ranks", Rank)
    one = ranks.slice(gpus=0)
    ranks.take.call(b"").get()
    found = {}
    for mebi, times in ((1, 20), (64, 6)):
        for kind in ("bytes", "numpy"):
            value = os.urandom(MEBI) * mebi
            if kind == "numpy":
                value = np.frombuffer(value, np.uint8).copy()
            took, used = [], []
            for _ in range(times):
                before = cpu_ms() + one.cpu.call_one().get()
                begun = time.perf_counter()
                one.echo.call_one(value).get()
                took.append(time.perf_counter() - begun)
                used.append(cpu_ms() + one.cpu.call_one().get() - before)
            found[f"echo {mebi} MiB {kind}, MiB/s"] = 2 * mebi / min(took)
            found[f"echo {mebi} MiB {kind}, CPU ms"] = min(used)
            took = []
            for _ in range(times // 2):
                begun = time.perf_counter()
                ranks.take.call(value).get()
                took.append(time.perf_counter() - begun)
            found[f"to 8 ranks {mebi} MiB {kind}, MiB/s"] = 8 * mebi / min(took)
    print("RESULT " + json.dumps(found), flush=True)
    os._exit(0)
"""

# Writes so many fresh bytes, once or twice, and gives them back.
STRANGER = """
import mmap, sys
size, step = int(sys.argv[1]), 1 << 24
kept = []
for _ in range(int(sys.argv[2])):
    kept.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    kept[-1].madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size, step):
        kept[-1][at : at + step] = bytes(step)
"""


def measured(python: str) -> dict[str, float]:
    """What the program says under that interpreter."""
    path = Path(sys.executable).parent / "python" if python == "here" else Path(python)
    command = [path, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise RuntimeError(f"{python}: {done.stderr[-2000:]}")


def compared(peer: str | None, rounds: int) -> None:
    """Print a table."""
    sides = ["here", *([peer] if peer else [])]
    best: dict[str, dict[str, float]] = {side: {} for side in sides}
    for _ in range(rounds):
        for side in sides:
            for name, figure in measured(side).items():
                pick = min if name.endswith("ms") else max
                best[side][name] = pick(best[side].get(name, figure), figure)
    print(f"{'':32}{'ours':>12}{'peer':>12}{'times better':>14}")
    for name, ours in best["here"].items():
        theirs = best[peer][name] if peer else None
        row = f"{name:32}{ours:12,.1f}"
        if theirs is not None:
            ratio = theirs / ours if name.endswith("ms") else ours / theirs
            row += f"{theirs:12,.1f}{ratio:14.1f}"
        print(row)


def resident() -> int:
    """What this process holds: its own memory, and that of the files that are only its."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
    )
    own = int(fields["RssAnon"].split()[0]) << 10
    return own + sum(map(_in_segment, list(Path("/proc/self/fd").iterdir())))


def _in_segment(descriptor: Path) -> int:
    """Memory behind a descriptor, if that is of a segment."""
    try:
        if "monarch-payload" in str(descriptor.readlink()):
            return descriptor.stat().st_blocks * 512
    except FileNotFoundError:  # closed meanwhile, as the one that listed them
        pass
    return 0


def pinged(gibibytes: float, kind: str) -> None:
    """Send so much to one actor while another of the same rank is pinged."""
    import numpy

    from monarch.actor import Actor, endpoint, this_host

    class Taker(Actor):
        @endpoint
        def take(self, value: Any) -> int:
            return int(value[-1])

        @endpoint
        def ping(self) -> None: ...

    procs = this_host().spawn_procs({"gpus": 1})
    taker, beside = procs.spawn("taker", Taker), procs.spawn("beside", Taker)
    beside.ping.call_one().get()
    size = int(gibibytes * 1024 * MEBI)
    value: Any = numpy.ones(size, numpy.uint8) if kind == "array" else bytes([1]) * size
    over = threading.Event()
    pings: list[float] = []
    peak = before = resident()

    def ping() -> None:
        nonlocal peak
        while not over.is_set():
            begun = time.perf_counter()
            beside.ping.call_one().get()
            pings.append(time.perf_counter() - begun)
            peak = max(peak, resident())

    def meanwhile(work: Callable[[], object]) -> float:
        """Seconds that it takes, with pings beside it."""
        over.clear()
        pings.clear()
        thread = threading.Thread(target=ping)
        thread.start()
        begun = time.perf_counter()
        work()
        took = time.perf_counter() - begun
        over.set()
        thread.join()
        pings.sort()
        return took

    took = meanwhile(lambda: taker.take.call_one(value).get())
    print(f"\n{gibibytes:g} GiB as an argument, {kind}: {took:.2f} s")
    middle, longest = 1e3 * pings[len(pings) // 2], 1e3 * pings[-1]
    print(f"{len(pings)} pings meanwhile: median {middle:.2f} ms, longest {longest:.1f} ms")
    print(f"the sender held {(peak - before) / MEBI:,.0f} MiB more at most")
    copies = "1" if kind == "array" else "2"
    stranger = [sys.executable, "-c", STRANGER, str(size), copies]
    took = meanwhile(lambda: subprocess.run(stranger, check=True))
    print(f"a stranger writes as much in {took:.2f} s: longest ping {1e3 * pings[-1]:.1f} ms")
    procs.stop().get()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="an interpreter that has torchmonarch and numpy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gibibytes", type=float, default=2.0)
    asked = parser.parse_args()
    compared(asked.peer, asked.rounds)
    for kind in ("array", "bytes") if asked.gibibytes else ():
        pinged(asked.gibibytes, kind)


if __name__ == "__main__":
    main()
