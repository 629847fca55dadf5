"""One-sided reads and writes between two processes of this host, by transport and size.

    python -m tests.benchmarks.rdma [--most MIB]

MiB a second, the best of several; and the share of what a copy inside one process reaches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy

from monarch.actor import endpoint, shutdown_context, this_host
from monarch.rdma import RDMABuffer
from tests.integration.rdma.parties import Holder, Mover, pattern

MIB = 1 << 20
SIZES = [4 << 10, 64 << 10, MIB, 16 * MIB, 256 * MIB]


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest of so many, after one that does not count."""
    work()
    lowest = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        lowest = min(lowest, time.perf_counter() - began)
    return lowest


def rounds(size: int) -> int:
    return 5 if size >= 16 * MIB else 200


def copied(size: int) -> float:
    source, target = pattern(size), numpy.zeros(size, numpy.uint8)
    return best(lambda: numpy.copyto(target, source), rounds(size))


class Timed(Mover):
    """Times what it moves."""

    @endpoint
    def time(self, buffer: RDMABuffer, way: str) -> float:
        room: Any = numpy.zeros(buffer.size(), numpy.uint8)
        move = buffer.read_into if way == "read" else buffer.write_from
        return best(lambda: move(room).get(), rounds(buffer.size()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=256, help="largest size in MiB")
    sizes = [size for size in SIZES if size <= parser.parse_args().most * MIB]
    plain = {size: copied(size) for size in sizes}
    holder: Any = this_host().spawn_procs({"gpus": 1}).spawn("holder", Holder)
    print(f"{'bytes':>12} {'':5} {'way':5} {'us':>10} {'MiB/s':>10} {'of a copy':>10}")
    for size in sizes:
        us, rate = 1e6 * plain[size], size / MIB / plain[size]
        print(f"{size:12,} {'copy':5} {'':5} {us:10,.1f} {rate:10,.0f}")
    for name in ("shm", "cma", "tcp"):
        mover: Any = this_host().spawn_procs({"gpus": 1}).spawn("mover", Timed)
        mover.only.call_one(name).get()
        for size in sizes:
            buffer = holder.make.call_one(size, name == "shm").get()
            for way in ("read", "write"):
                seconds = mover.time.call_one(buffer, way).get()
                rate, share = size / MIB / seconds, plain[size] / seconds
                row = f"{size:12,} {name:5} {way:5} {1e6 * seconds:10,.1f} {rate:10,.0f}"
                print(f"{row} {share:10.0%}")
            holder.forget.call_one().get()
    shutdown_context()


if __name__ == "__main__":
    main()
