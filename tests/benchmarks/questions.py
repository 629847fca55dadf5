"""The same questions in SQL to this runtime and to torchmonarch, each through its own client.

    python -m tests.benchmarks.questions [--torchmonarch PYTHON] [--ranks 8] [--calls 200]

PYTHON is an interpreter with `torchmonarch` 0.7.0 and `torch`. This file runs under it too, and
imports nothing else there. Each side starts a job with telemetry, calls all ranks `--calls` times,
and asks by `JobState.query_engine_client`. Milliseconds: median, with the least in brackets, of
`--rounds`; the count of messages shows that both have them. Also: seconds of a job with and without
telemetry until its first answers, and of the calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

QUESTIONS = (
    "SELECT count(*) AS n FROM messages",
    "SELECT endpoint, count(*) AS n FROM messages GROUP BY endpoint",
    "SELECT count(*) AS n FROM actors",
    "SELECT new_status, count(*) AS n FROM actor_status_events GROUP BY new_status",
    "SELECT status, count(*) AS n FROM message_status_events GROUP BY status",
    (
        "SELECT m.endpoint, avg(e.timestamp_us - m.timestamp_us) AS us FROM messages m "
        "JOIN message_status_events e ON e.message_id = m.id WHERE e.status = 'complete' "
        "GROUP BY m.endpoint"
    ),
)  # fmt: skip
SPAWNED = "until the first answers"
CALLED = "the calls"
FOUND = "messages that are found"


def main() -> None:
    """Run each side in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchmonarch", metavar="PYTHON")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--side", choices=("off", "on"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(measure(given.ranks, given.calls, given.rounds, given.side == "on")))
        return
    pythons = {"ours": sys.executable}
    if given.torchmonarch:
        pythons["torchmonarch"] = given.torchmonarch
    for name, python in pythons.items():
        off, on = (in_process(python, given, which) for which in ("off", "on"))
        print(f"{name}, {given.ranks} ranks")
        for what in (SPAWNED, CALLED):
            print(f"  {off[what]:10.2f} s   without telemetry, {on[what]:.2f} s with: {what}")
        print(f"  {on[FOUND]:10}     {FOUND}")
        for sql in QUESTIONS:
            median, least = on[sql]
            print(f"  {median:10.1f} ms  [{least:.1f}]  {sql}")


def in_process(python: str, given: Any, which: str) -> dict[str, Any]:
    """The figures of one side."""
    command = [python, __file__, "--side", which]
    for name in ("ranks", "calls", "rounds"):
        command += [f"--{name}", str(getattr(given, name))]
    # What makes this checkout importable would hide the other runtime.
    keep = python == sys.executable
    env = {key: value for key, value in os.environ.items() if keep or key != "PYTHONPATH"}
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    return json.loads(ran.stdout.splitlines()[-1])


def measure(ranks: int, calls: int, rounds: int, telemetry: bool) -> dict[str, Any]:
    """All figures of this interpreter."""
    from monarch.actor import Actor, endpoint
    from monarch.job import ProcessJob, TelemetryConfig

    class Worker(Actor):
        @endpoint
        def step(self) -> int:
            return 1

    job: Any = ProcessJob({"hosts": 1})
    if telemetry:
        job.enable_telemetry(TelemetryConfig())
    began = time.perf_counter()
    state = job.state(cached_path=None)
    try:
        workers = state.hosts.spawn_procs({"gpus": ranks}, name="workers").spawn("workers", Worker)
        workers.step.call().get()
        found: dict[str, Any] = {SPAWNED: time.perf_counter() - began}
        began = time.perf_counter()
        for _ in range(calls):
            workers.step.call().get()
        found[CALLED] = time.perf_counter() - began
        if telemetry:
            client = state.query_engine_client
            (counted,) = client.query(QUESTIONS[0])["rows"]
            found[FOUND] = counted["n"]
            for sql in QUESTIONS:
                times = [timed_ms(lambda: client.query(sql)) for _ in range(rounds)]  # noqa: B023
                found[sql] = statistics.median(times), min(times)
    finally:
        job.kill()
    return found


def timed_ms(ask: Any) -> float:
    """Milliseconds of one question."""
    began = time.perf_counter()
    ask()
    return 1e3 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
