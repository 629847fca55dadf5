"""Workers for tests: real ones, as `monarch worker` makes them.

Runs in: the process of pytest, or a program that a test starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from monarch.actor import HostMesh, attach_to_workers

PATIENCE_S = 90.0
TRUST_ALL = "trust_all_connections"


class Worker:
    """One worker. `address`: where it listens, with the port that it got."""

    def __init__(self, process: subprocess.Popen[str], lines: Sequence[str]) -> None:
        self.process = process
        self.lines = lines
        self.address = lines[0].removeprefix("listening at ").strip()
        self.others = lines[1].removeprefix("others reach it at ").strip()

    def ended(self) -> int:
        """Wait for its end; the status."""
        return self.process.wait(timeout=PATIENCE_S)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "monarch", "worker", *arguments]


@contextmanager
def worker(
    *arguments: str, before: Sequence[str] = (), env: dict[str, str] | None = None
) -> Iterator[Worker]:
    """A worker with these arguments, from when it listens; ended by SIGTERM if it lives."""
    path = os.pathsep.join(p for p in sys.path if p)
    process = subprocess.Popen(
        [*before, *command(*arguments)],
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert all(lines), f"it has ended with status {process.wait(timeout=PATIENCE_S)}"
        yield Worker(process, lines)
    finally:
        if process.poll() is None:
            process.terminate()
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@contextmanager
def workers(count: int, *arguments: str) -> Iterator[list[Worker]]:
    """Some on loopback, without keys unless `arguments` give some."""
    given = arguments or ("--keys", TRUST_ALL)
    with ExitStack() as stack:
        yield [
            stack.enter_context(worker("--address", "tcp://127.0.0.1:0", *given))
            for _ in range(count)
        ]


def attached(found: Sequence[Worker], ca: str = TRUST_ALL) -> HostMesh:
    """The hosts of these workers, attached to."""
    mesh = attach_to_workers(ca=ca, workers=[one.address for one in found])
    mesh.initialized.get(timeout=PATIENCE_S)
    return mesh
