"""The cost of telemetry: of a call with history or OTLP, and of snapshots of 1,024 ranks.

    python -m tests.benchmarks.watching

Calls: CPU time of client and rank together for a call, in microseconds; a receiver on this machine
takes the export. Snapshots: CPU time of the admin server for one, from rows that it has, in
milliseconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from monarch._src.admin.state.case_file import case_of
from monarch._src.admin.state.nodes import HostSource, build, tree_text
from monarch._src.admin.state.openmetrics import exposition
from monarch._src.admin.state.outline import Outline
from tests.integration.otlp_receiver import otlp_receiver
from tests.unit.admin.state.test_nodes import HOST, actor, proc

RANKS = 1024
CALLS = """
import os
import sys
import time

from monarch.actor import Actor, endpoint, this_host
from monarch.observe import record


class Echo(Actor):
    @endpoint
    def cpu(self) -> float:
        return time.process_time()

    @endpoint
    def echo(self, value: int) -> int:
        return value


if __name__ == "__main__":
    number, rounds = int(sys.argv[1]), 5
    if "RECORDED" in os.environ:
        record()
    echo = this_host().spawn_procs().spawn("echo", Echo)
    best = float("inf")
    for _ in range(rounds):
        begun = time.process_time() + echo.cpu.call_one().get()
        for value in range(number):
            echo.echo.call_one(value).get()
        spent = time.process_time() + echo.cpu.call_one().get() - begun
        best = min(best, spent / number)
    print(best * 1e6)
"""


def call_us(**variables: str) -> float:
    """CPU time of a call in microseconds, with these variables in the environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", CALLS, "2000"], env={**clean, **variables}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def best_ms(make: Callable[[], object]) -> float:
    """CPU time of the best of seven runs, in milliseconds."""
    spent: list[float] = []
    for _ in range(7):
        begun = time.thread_time()
        make()
        spent.append(time.thread_time() - begun)
    return min(spent) * 1e3


def main() -> None:
    """Print one line for each figure."""
    print(f"a call, telemetry off    {call_us():8.1f} us")
    print(f"a call, with history     {call_us(RECORDED='1'):8.1f} us")
    with otlp_receiver() as receiver:
        export = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        }  # fmt: skip
        print(f"a call, all by OTLP      {call_us(**export):8.1f} us")
        export["OTEL_TRACES_EXPORTER"] = "none"
        print(f"a call, no traces        {call_us(**export):8.1f} us")
        assert receiver.problems == []
    tables: dict[str, list[dict[str, Any]]] = {
        "hosts": [{**HOST, "log_lines_dropped": 0}],
        "procs": [proc(rank, "busy") for rank in range(RANKS)],
        "actors": [actor(rank) for rank in range(RANKS)],
    }
    sources = [HostSource("abc", "/run/monarch-abc")]
    cluster = build(1, 1, sources, tables)
    outline = Outline()
    for name, make in {
        "nodes": lambda: build(1, 1, sources, tables),
        "tree": lambda: tree_text(cluster),
        "metrics": lambda: exposition(tables, 0),
        "case file": lambda: case_of(1, tables),
        "outline of the view": lambda: outline.rows(cluster),
    }.items():
        print(f"{RANKS} ranks, {name:20} {best_ms(make):6.1f} ms")


if __name__ == "__main__":
    main()
