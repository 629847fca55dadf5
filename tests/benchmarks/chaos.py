"""Chaos: ranks are killed and stopped at random for minutes, under load, and made again.

    python -m tests.benchmarks.chaos --minutes 10 --seed 1

64 ranks in eight meshes, half of which restart what dies (`restart=`). A thread for each mesh calls
it all the time, one rank, all ranks, large and small; the others it spawns again on the same host
when they have lost a rank. Another thread injects what the seed has drawn. At the end: how each
call ended, and what the processes that last hold over time. Status 1 if a call ended without an
answer and without a reason, or if something grew.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

import monarch.actor
from monarch.actor import (
    Actor,
    ActorError,
    Future,
    MeshFailure,
    MeshStoppedError,
    ProcMesh,
    SupervisionError,
    endpoint,
    shutdown_context,
    this_host,
)
from monarch.config import configure
from monarch.supervision import Restart, RestartedError
from monarch.testing import PlannedFault, faults

MESHES, RANKS = 8, 8
ANSWER_S = 120.0  # by when a call has to have ended: far beyond every bound of the runtime
PAYLOADS = [b"", b"x" * 1_000, b"x" * 100_000]
# Growth that is no leak: allocators and tables settle. Of memory, between the second quarter of the
# run and the last; of descriptors, beyond those of the meshes that are up at either time.
GROWTH = 1.10


class Worker(Actor):
    """Gives back what it gets."""

    @endpoint
    def echo(self, number: int, payload: bytes) -> tuple[int, int]:
        return number, len(payload)

    @endpoint
    def fail(self, number: int) -> None:
        raise ValueError(number)


@dataclass
class Tally:
    """How calls have ended."""

    ended: Counter[str] = field(default_factory=Counter[str])
    unexplained: list[str] = field(default_factory=list[str])
    respawned: int = 0
    recovery_s: list[float] = field(default_factory=list[float])


class Crew:
    """One mesh, called all the time, and made again when it has lost a rank."""

    def __init__(self, name: str, until: float, restart: Restart | None) -> None:
        self.name = name
        self.until = until
        self.restart = restart
        self.tally = Tally()
        self.mesh: ProcMesh | None = None
        self._number = 0

    def run(self) -> None:
        """Until the time is up."""
        while time.monotonic() < self.until:
            began = time.monotonic()
            mesh = self.mesh = this_host().spawn_procs(
                {"gpus": RANKS}, name=self.name, restart=self.restart
            )
            try:
                worker = mesh.spawn("worker", Worker)
                worker.echo.call(0, b"").get(timeout=ANSWER_S)
                if self.tally.respawned:
                    self.tally.recovery_s.append(time.monotonic() - began)
                self._work(worker)
            except (SupervisionError, MeshStoppedError) as error:
                self._explained(error)
            self.mesh = None
            mesh.stop().get(timeout=ANSWER_S)
            self.tally.respawned += 1

    def _work(self, worker: Worker) -> None:
        """Call until the mesh has lost a rank."""
        while time.monotonic() < self.until:
            calls = []
            for _ in range(20):
                number = self._number = self._number + 1
                payload = PAYLOADS[number % len(PAYLOADS)]
                one = worker.slice(gpus=number % RANKS)
                try:
                    calls.append((number, len(payload), worker.echo.call(number, payload)))
                    calls.append((number, len(payload), one.echo.call_one(number, payload)))
                    calls.append((number, -1, one.fail.call_one(number)))
                    one.echo.broadcast(number, payload)
                except SupervisionError as error:
                    self._explained(error)
                    break
            lost = False
            for number, size, answer in calls:
                lost |= self._end(number, size, answer)
            if lost:
                return

    def _end(self, number: int, size: int, answer: Future[Any]) -> bool:
        """Wait for one call; True if the mesh has lost a rank."""
        try:
            value = answer.get(timeout=ANSWER_S)
        except ActorError as error:
            if size == -1 and isinstance(error.exception, ValueError):
                self.tally.ended["raised, as it should"] += 1
            else:
                self.tally.unexplained.append(f"{self.name}: {error}")
        except RestartedError as error:
            self._explained(error)
        except SupervisionError as error:
            self._explained(error)
            return True
        except TimeoutError:
            self.tally.unexplained.append(f"{self.name}: call {number} never ended")
        else:
            answers = [value] if isinstance(value, tuple) else value.values()
            if all(given == (number, size) for given in answers):
                self.tally.ended["answered"] += 1
            else:
                self.tally.unexplained.append(f"{self.name}: call {number} got {answers}")
        return False

    def _explained(self, error: SupervisionError | MeshStoppedError) -> None:
        failures = getattr(error, "failures", ())
        if not failures or not all(one.message for one in failures):
            self.tally.unexplained.append(f"{self.name}: no reason in {error!r}")
        else:
            self.tally.ended[f"failed: {failures[0].kind}, {failures[0].message}"] += 1


class Breaker:
    """Injects what was planned, into whichever mesh stands at that place at that time."""

    def __init__(self, crews: list[Crew], plan: tuple[PlannedFault, ...]) -> None:
        self._crews = crews
        self._plan = plan
        self.done: Counter[str] = Counter()
        self._ended = threading.Event()

    def end(self) -> None:
        """Inject no more."""
        self._ended.set()

    def run(self) -> None:
        """Until the plan is through."""
        began = time.monotonic()
        for fault in self._plan:
            if self._ended.wait(max(0.0, began + fault.at_s - time.monotonic())):
                return
            mesh = self._crews[fault.rank // RANKS].mesh
            if mesh is None or mesh.stopped:
                self.done["nobody was there"] += 1
                continue
            rank = mesh.slice(gpus=fault.rank % RANKS)
            try:
                if fault.kind == "kill":
                    faults.kill(rank, signal.SIGKILL)
                else:
                    with faults.stopped(rank):
                        self._ended.wait(fault.for_s)
                self.done[fault.kind] += 1
            except RuntimeError:  # it was stopped in between
                self.done["nobody was there"] += 1


@dataclass(frozen=True)
class Sample:
    """What a process held at one moment."""

    at_s: float
    rss_mib: float
    fds: int
    threads: int


class Watch:
    """Client, host agent and zygote, looked at from time to time."""

    def __init__(self) -> None:
        client = psutil.Process()
        (agent,) = [child for child in client.children() if child.children()]
        self._processes = {"client": client, "agent": agent, "zygote": agent.children()[0]}
        self.samples: dict[str, list[Sample]] = {name: [] for name in self._processes}
        self._began = time.monotonic()

    def look(self) -> None:
        """One sample of each."""
        at = time.monotonic() - self._began
        for name, process in self._processes.items():
            self.samples[name].append(
                Sample(
                    at, process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
                )
            )

    def table(self, rows: int = 13) -> str:
        """Evenly chosen samples, one a row."""
        count = len(self.samples["client"])
        step = max(1, (count - 1) // (rows - 1))
        chosen = sorted({*range(0, count, step), count - 1})
        head = "".join(f"{name + ' MiB':>13}{'fds':>6}{'threads':>9}" for name in self.samples)
        lines = [f"{'s':>6}{head}"]
        for at in chosen:
            cells = "".join(
                f"{one[at].rss_mib:>13.1f}{one[at].fds:>6}{one[at].threads:>9}"
                for one in self.samples.values()
            )
            lines.append(f"{self.samples['client'][at].at_s:>6.0f}{cells}")
        return "\n".join(lines)

    def grown(self) -> list[str]:
        """What holds more in the last quarter of the run than in the second."""
        found: list[str] = []
        for name, samples in self.samples.items():
            quarter = max(1, len(samples) // 4)
            before, after = samples[quarter : 2 * quarter], samples[-quarter:]
            for what in ("rss_mib", "fds", "threads"):
                early = statistics.median(getattr(one, what) for one in before)
                late = statistics.median(getattr(one, what) for one in after)
                # A mesh more or less is up at any moment; it takes 3 descriptors a rank.
                room = 3 * RANKS if what == "fds" else 2 if what == "threads" else 1.0
                if late > early * GROWTH and late - early > room:
                    found.append(f"{name}: {what} grew from {early:.1f} to {late:.1f}")
        return found


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--every", type=float, default=0.5, help="seconds between faults, on average"
    )
    options = parser.parse_args()
    configure(cleanup_timeout="5s")
    told: Counter[str] = Counter()

    def hook(failure: MeshFailure) -> None:
        told[failure.failures[0].kind] += 1

    monarch.actor.unhandled_fault_hook = hook
    seconds = options.minutes * 60
    plan = faults.plan(
        options.seed, duration=seconds, every=options.every, ranks=MESHES * RANKS,
        kinds={"kill": 4, "stop": 1}, longest=0.3,
    )  # fmt: skip
    this_host().spawn_procs().stop().get()
    watch = Watch()
    until = time.monotonic() + seconds
    policy = Restart(at_most=1_000_000, within="60s", back_off="10ms", longest="100ms")
    crews = [
        Crew(f"crew-{number}", until, policy if number % 2 else None) for number in range(MESHES)
    ]
    breaker = Breaker(crews, plan)
    threads = [threading.Thread(target=one.run, daemon=True) for one in (*crews, breaker)]
    for thread in threads:
        thread.start()
    stop = threading.Event()
    while any(thread.is_alive() for thread in threads[:-1]):
        watch.look()
        stop.wait(min(5.0, seconds / 40))
    breaker.end()
    threads[-1].join()
    return report(options.seed, crews, breaker, watch, told)


def report(seed: int, crews: list[Crew], breaker: Breaker, watch: Watch, told: Counter[str]) -> int:
    """Say what came of it; the exit status."""
    ended: Counter[str] = Counter()
    for crew in crews:
        ended += crew.tally.ended
    unexplained = [line for crew in crews for line in crew.tally.unexplained]
    times = sorted(one for crew in crews for one in crew.tally.recovery_s)
    print(f"seed {seed}; injected: {dict(breaker.done)}; faults told: {dict(told)}")
    print(f"calls: {sum(ended.values())}, and {len(unexplained)} unexplained")
    for what, count in ended.most_common():
        print(f"  {count:>9}  {what}")
    for line in unexplained[:20]:
        print(f"  !! {line}")
    print(f"meshes made again: {sum(crew.tally.respawned for crew in crews)}", end="")
    if times:
        late = times[min(len(times) - 1, int(len(times) * 0.99))]
        print(
            f", until the first answer {statistics.median(times):.2f} s, p99 {late:.2f} s", end=""
        )
    print(f"\n\n{watch.table()}\n")
    grown = watch.grown()
    print("\n".join(f"!! {line}" for line in grown) or "nothing grew")
    shutdown_context()
    left = [child for child in psutil.Process().children(recursive=True) if child.is_running()]
    print(f"processes left: {len(left)}")
    sys.stdout.flush()
    return 1 if unexplained or grown or left else 0


if __name__ == "__main__":
    os._exit(main())
