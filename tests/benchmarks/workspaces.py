"""What `sync_workspace` takes: first, again, and after one edit; and a scan of the directories.

    python -m tests.benchmarks.workspaces [--files 2000] [--kib 10] [--hosts 2] [--rounds 5]

The hosts are workers on this machine. Medians of the rounds; each round has new workers.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from monarch.actor import HostMesh, attach_to_workers, shutdown_context
from monarch.tools.config import Workspace
from tests.workers import TRUST_ALL, workers

SECONDS: defaultdict[str, list[float]] = defaultdict(list)


def timed(what: str, run: Callable[[], object]) -> None:
    begin = time.perf_counter()
    run()
    SECONDS[what].append(time.perf_counter() - begin)


def measure(project: Path, hosts: int) -> None:
    """One round with new workers."""
    with workers(hosts) as found:
        mesh = attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in found])
        mesh.initialized.get()
        workspace = Workspace(project)
        timed("first", lambda: mesh.sync_workspace(workspace).get())
        timed("again", lambda: mesh.sync_workspace(workspace).get())
        edited = project / "part_0" / "module_0.py"
        edited.write_text(edited.read_text() + "#")
        timed("one edit", lambda: mesh.sync_workspace(workspace).get())
        timed("a mesh of one process a host, for comparison", lambda: spawn_and_stop(mesh))
        shutdown_context(reason="the round is over")


def spawn_and_stop(mesh: HostMesh) -> None:
    procs = mesh.spawn_procs(preload=())
    procs.initialized.get()
    procs.stop().get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--kib", type=int, default=10)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        for number in range(given.files):
            file = project / f"part_{number // 100}" / f"module_{number}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# {number}\n" + "x = 1\n" * (given.kib * 1024 // 6))
        for _ in range(given.rounds):
            measure(project, given.hosts)
    for what, seconds in SECONDS.items():
        print(f"{what}: {statistics.median(seconds):.3f} s")


if __name__ == "__main__":
    main()
