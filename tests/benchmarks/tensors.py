"""Operations on tensors of a mesh: this runtime, torchmonarch, and torch in one process.

    python -m tests.benchmarks.tensors [--torchmonarch PYTHON] [--operations 2000] [--rounds 3]
                                       [--ranks 1 2]

PYTHON is an interpreter with `torchmonarch` 0.7.0 and `torch`. This file runs under it too, and
imports nothing else there. The operations are an addition and a product of 16 x 16 matrices, in
turn. `client`: CPU time of the thread that issues one. `end to end`: wall time of one until the
last value is fetched, amortised. `op + fetch`: one operation and the fetch of a scalar. `region`:
a call of a compiled function of 200 such operations, client and end to end for the whole call. The
best round of each is shown, and the median for `op + fetch`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

FETCHES = 200
REGION = 200  # operations
CALLS = 50  # of a region, in a round


def main() -> None:
    """Run each side in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchmonarch", metavar="PYTHON")
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--side", choices=["ours", "peer", "local"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side is not None:
        print(json.dumps(run_side(given.side, given.operations, given.rounds, given.ranks[0])))
        return
    sides = [("torch, no mesh", sys.executable, "local", 0)]
    sides += [("this runtime", sys.executable, "ours", ranks) for ranks in given.ranks]
    if given.torchmonarch:
        sides += [("torchmonarch", given.torchmonarch, "peer", ranks) for ranks in given.ranks]
    print(
        "| | ranks | client | end to end | op + fetch, best / median | call of an actor | "
        "region: client | end to end |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, python, side, ranks in sides:
        found = in_process(python, side, given.operations, given.rounds, ranks)
        call = f"{found['call']:.2f} ms" if found["call"] else ""
        fetch = f"{found['best']:.2f} / {found['median']:.2f} ms" if side != "local" else ""
        region = ["", ""]
        if "region" in found:
            region = [f"{found['region']:.1f} us", f"{found['region_whole']:.0f} us"]
        print(
            f"| {name} | {ranks or ''} | {found['client']:.1f} us | {found['whole']:.1f} us | "
            f"{fetch} | {call} | {region[0]} | {region[1]} |"
        )


def in_process(
    python: str, side: str, operations: int, rounds: int, ranks: int
) -> dict[str, float]:
    """What that side measures, in a process of its own."""
    done = subprocess.run(
        [python, __file__, "--side", side, "--operations", str(operations),
         "--rounds", str(rounds), "--ranks", str(ranks)],
        stdout=subprocess.PIPE, text=True, check=True, timeout=1800,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_side(side: str, operations: int, rounds: int, ranks: int) -> dict[str, float]:
    """Measure one side in this process."""
    import torch

    if side == "local":
        return measured(torch, operations, rounds, lambda tensor: tensor)
    from monarch import fetch_shard  # type: ignore[attr-defined]
    from monarch.actor import Actor, endpoint, this_host

    class Echo(Actor):
        """The measure of a call."""

        @endpoint
        def echo(self) -> int:
            """One."""
            return 1

    procs: Any = this_host().spawn_procs({"gpus": ranks})
    echo: Any = procs.spawn("echo", Echo).slice(gpus=0).echo
    call = best_and_median(lambda: echo.call_one().get())[0]
    with procs.activate():
        found = measured(torch, operations, rounds, lambda one: fetch_shard(one).result())
        if side == "ours":
            found |= of_regions(torch, rounds, lambda one: fetch_shard(one).result())
    procs.stop().get()
    return {**found, "call": call}


def measured(
    torch: Any, operations: int, rounds: int, fetch: Callable[[Any], Any]
) -> dict[str, float]:
    """Microseconds for each operation, milliseconds for each fetch."""
    one, scalar = torch.full((16, 16), 0.01), torch.ones(())
    fetch(one)
    client = whole = float("inf")
    for _ in range(rounds):
        began, cpu, value = time.perf_counter(), time.thread_time(), one
        for _ in range(operations // 2):
            value = value + one
            value = value.mm(one)
        cpu = time.thread_time() - cpu
        fetch(value)
        client = min(client, cpu / operations * 1e6)
        whole = min(whole, (time.perf_counter() - began) / operations * 1e6)
    best, median = best_and_median(lambda: fetch(scalar + 1))
    return {"client": client, "whole": whole, "best": best, "median": median, "call": 0.0}


def of_regions(torch: Any, rounds: int, fetch: Callable[[Any], Any]) -> dict[str, float]:
    """Microseconds for each call of a region."""
    import monarch

    @monarch.compile
    def chain(value: Any, one: Any) -> Any:
        for _ in range(REGION // 2):
            value = value + one
            value = value.mm(one)
        return value

    one = torch.full((16, 16), 0.01)
    value = one
    for _ in range(4):  # recorded, compared with another value, and told to the ranks
        value = chain(value, one)
    fetch(value)
    client = whole = float("inf")
    for _ in range(rounds):
        began, cpu = time.perf_counter(), time.thread_time()
        for _ in range(CALLS):
            value = chain(value, one)
        cpu = time.thread_time() - cpu
        fetch(value)
        client = min(client, cpu / CALLS * 1e6)
        whole = min(whole, (time.perf_counter() - began) / CALLS * 1e6)
    return {"region": client, "region_whole": whole}


def best_and_median(run: Callable[[], Any]) -> tuple[float, float]:
    """Of many runs, in milliseconds."""
    times: list[float] = []
    run()
    for _ in range(FETCHES):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e3)
    return min(times), sorted(times)[len(times) // 2]


if __name__ == "__main__":
    main()
