"""The same work on this runtime, torchmonarch and Ray, in turn, in one run.

    python -m tests.benchmarks.against_peers [--torchmonarch PYTHON] [--ray PYTHON]
                                             [--rounds 3] [--ranks 8]

Each PYTHON is an interpreter with the peer installed: `torchmonarch` 0.7.0 with `torch` 2.13.0, or
`ray` 2.60. This file runs under it too, and imports nothing else there. This runtime and
torchmonarch run the same class, through the public API of both. The best figure of each side is
compared.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

PIPELINED = 2000
BROADCASTS = 2000
BUSY_S = 600.0
ECHOED = {"4 KiB": 4096, "1 MiB": 1 << 20}


class Work(Protocol):
    """What each side can do."""

    def start(self, ranks: int) -> None:
        """Have that many actors, each in a process of its own, and an answer of each."""
        ...

    def stop(self) -> None:
        """End them."""
        ...

    def one(self) -> None:
        """Call one and wait."""
        ...

    def one_async(self) -> None:
        """Call one whose method is `async def`, and wait."""
        ...

    def all(self) -> None:
        """Call all and wait."""
        ...

    def pipelined(self) -> None:
        """PIPELINED calls of one, all in flight."""
        ...

    def broadcasts(self) -> None:
        """BROADCASTS messages to all that ask for no answer, then one call of all."""
        ...

    def echo(self, data: bytes) -> None:
        """Send bytes to one and have them back."""
        ...

    def pids(self) -> list[int]:
        """The processes of all."""
        ...

    def kill_busy(self) -> float:
        """Seconds from the SIGKILL of a busy one to the exception of its caller."""
        ...


class OnMonarch:
    """An actor mesh."""

    def __init__(self) -> None:
        from monarch.actor import Actor, endpoint, this_host, unhandled_fault_hook

        class Counter(Actor):
            def __init__(self) -> None:
                self.n = 0

            @endpoint
            def add(self, x: int) -> int:
                self.n += x
                return self.n

            @endpoint
            def echo(self, data: bytes) -> bytes:
                return data

            @endpoint
            def pid(self) -> int:
                return os.getpid()

            @endpoint
            def sleep(self, seconds: float) -> None:
                time.sleep(seconds)

        class AsyncCounter(Actor):
            def __init__(self) -> None:
                self.n = 0

            @endpoint
            async def add(self, x: int) -> int:
                self.n += x
                return self.n

        import monarch.actor

        assert callable(unhandled_fault_hook)
        monarch.actor.unhandled_fault_hook = lambda failure: None  # type: ignore[assignment]
        self._host, self._kinds = this_host, (Counter, AsyncCounter)

    def start(self, ranks: int) -> None:
        self._procs: Any = self._host().spawn_procs({"gpus": ranks})
        counter, async_counter = self._kinds
        self._mesh: Any = self._procs.spawn("counter", counter)
        self._one: Any = self._mesh.slice(gpus=0)
        self._mesh.add.call(0).get()
        self._async: Any = self._procs.spawn("async", async_counter).slice(gpus=0)

    def stop(self) -> None:
        self._procs.stop().get()

    def one(self) -> None:
        self._one.add.call_one(1).get()

    def one_async(self) -> None:
        self._async.add.call_one(1).get()

    def all(self) -> None:
        self._mesh.add.call(1).get()

    def pipelined(self) -> None:
        for future in [self._one.add.call_one(1) for _ in range(PIPELINED)]:
            future.get()

    def broadcasts(self) -> None:
        for _ in range(BROADCASTS):
            self._mesh.add.broadcast(1)
        self._mesh.add.call(0).get()

    def echo(self, data: bytes) -> None:
        assert self._one.echo.call_one(data).get() == data

    def pids(self) -> list[int]:
        return [pid for _, pid in self._mesh.pid.call().get().items()]

    def kill_busy(self) -> float:
        pid = self._one.pid.call_one().get()
        future = self._one.sleep.call_one(BUSY_S)
        return _killed(pid, future.get)


class OnRay:
    """A list of actor handles, each with a core of its own as far as Ray's accounting goes."""

    def __init__(self) -> None:
        import importlib

        ray: Any = importlib.import_module("ray")

        class Counter:
            def __init__(self) -> None:
                self.n = 0

            def add(self, x: int) -> int:
                self.n += x
                return self.n

            def echo(self, data: bytes) -> bytes:
                return data

            def pid(self) -> int:
                return os.getpid()

            def sleep(self, seconds: float) -> None:
                time.sleep(seconds)

        class AsyncCounter:
            def __init__(self) -> None:
                self.n = 0

            async def add(self, x: int) -> int:
                self.n += x
                return self.n

        self._ray = ray
        self._kinds: Any = (ray.remote(Counter), ray.remote(AsyncCounter))

    def start(self, ranks: int) -> None:
        if not self._ray.is_initialized():
            self._ray.init(
                num_cpus=ranks + 1, include_dashboard=False, logging_level="ERROR",
                log_to_driver=False, _metrics_export_port=None,
            )  # fmt: skip
        counter, async_counter = self._kinds
        self._mesh = [counter.remote() for _ in range(ranks)]
        self._ray.get([actor.add.remote(0) for actor in self._mesh])
        self._async = async_counter.remote()

    def stop(self) -> None:
        for actor in [*self._mesh, self._async]:
            self._ray.kill(actor)

    def one(self) -> None:
        self._ray.get(self._mesh[0].add.remote(1))

    def one_async(self) -> None:
        self._ray.get(self._async.add.remote(1))

    def all(self) -> None:
        self._ray.get([actor.add.remote(1) for actor in self._mesh])

    def pipelined(self) -> None:
        self._ray.get([self._mesh[0].add.remote(1) for _ in range(PIPELINED)])

    def broadcasts(self) -> None:
        for _ in range(BROADCASTS):
            for actor in self._mesh:
                actor.add.remote(1)
        self.all()

    def echo(self, data: bytes) -> None:
        assert self._ray.get(self._mesh[0].echo.remote(data)) == data

    def pids(self) -> list[int]:
        return self._ray.get([actor.pid.remote() for actor in self._mesh])

    def kill_busy(self) -> float:
        pid = self._ray.get(self._mesh[0].pid.remote())
        answer = self._mesh[0].sleep.remote(BUSY_S)
        return _killed(pid, lambda: self._ray.get(answer))


def _killed(pid: int, wait: Callable[[], object]) -> float:
    os.kill(pid, signal.SIGKILL)
    began = time.perf_counter()
    try:
        wait()
    except Exception:
        return time.perf_counter() - began
    raise AssertionError("a killed process answered")


def best(work: Callable[[], object], repeat: int, number: int = 1) -> float:
    """Seconds of one, of the best of `repeat` series of `number`."""
    found = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        for _ in range(number):
            work()
        found = min(found, (time.perf_counter() - began) / number)
    return found


def private_mib(pid: int) -> float:
    """The memory that a process shares with no other, in MiB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        lines = [line.split() for line in file]
    kib = sum(int(words[1]) for words in lines if words[0].startswith("Private_"))
    return kib / 1024


def measure(side: str, ranks: int) -> dict[str, float]:
    """All figures of one side."""
    began = time.perf_counter()
    work: Work = OnRay() if side == "Ray" else OnMonarch()
    imported = time.perf_counter() - began
    first = best(lambda: work.start(ranks), 1)
    stopped = best(work.stop, 1)
    second = best(lambda: work.start(ranks), 1)
    work.one_async()
    found = {
        "import (s)": imported,
        "first mesh, first answer (s)": first,
        "second mesh (s)": second,
        "call one and wait (us)": 1e6 * best(work.one, 5, 300),
        "the same, async (us)": 1e6 * best(work.one_async, 5, 300),
        f"call {ranks} and wait (us)": 1e6 * best(work.all, 5, 50),
        "calls in flight (1/s)": PIPELINED / best(work.pipelined, 3),
        "stop (s)": stopped,
        f"broadcasts to {ranks} (1/s)": BROADCASTS / best(work.broadcasts, 3),
        "memory of a process (MiB)": min(private_mib(pid) for pid in work.pids()),
    }
    for name, size in ECHOED.items():
        data = os.urandom(size)
        found[f"echo {name} (us)"] = 1e6 * best(lambda data=data: work.echo(data), 5, 30)
    found["SIGKILL to exception (ms)"] = 1e3 * work.kill_busy()
    work.stop()
    return found


def main() -> None:
    """Run the sides in turn and print the table; or, with --side, one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchmonarch", help="an interpreter with torchmonarch installed")
    parser.add_argument("--ray", help="an interpreter with ray installed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--side", choices=["ours", "torchmonarch", "Ray"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print("RESULT " + json.dumps(measure(options.side, options.ranks)), flush=True)
        return
    peers = {"torchmonarch": options.torchmonarch, "Ray": options.ray}
    sides = {"ours": sys.executable, **{name: python for name, python in peers.items() if python}}
    if len(sides) == 1:
        parser.error("--torchmonarch or --ray: name an interpreter with the peer installed")
    figures: dict[str, dict[str, float]] = {side: {} for side in sides}
    for _ in range(options.rounds):
        for side, python in sides.items():
            command = [python, __file__, "--side", side, "--ranks", str(options.ranks)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            lines = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
            if not lines:
                raise SystemExit(f"{side} ended with status {done.returncode}:\n{done.stderr}")
            for name, value in json.loads(lines[0][7:]).items():
                pick = max if name.endswith("(1/s)") else min
                seen = figures[side]
                seen[name] = pick(seen[name], value) if name in seen else value
    print(f"{'':32}" + "".join(f"{side:>13}{'':9}" for side in sides))
    for name, ours in figures["ours"].items():
        row = f"{name:32} {ours:12.3f}{'':9}"
        for side in list(sides)[1:]:
            theirs = figures[side][name]
            times = ours / theirs if name.endswith("(1/s)") else theirs / ours
            row += f" {theirs:12.3f} {times:6.1f} x"
        print(row)


if __name__ == "__main__":
    main()
