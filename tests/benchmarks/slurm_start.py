"""Jobs of Slurm beside `srun`: the time from the request on an idle Slurm to the first answer.

    python -m tests.benchmarks.slurm_start [--nodes 2] [--rounds 5]

As root, with Debian's Slurm, which this starts and ends; its nodes are all this host. Medians of
the rounds, in seconds, all ways in turn. *Answer* is that of the last node. `run_spmd` runs a
script without torch, which this program has imported before; the run loads torch on the nodes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from monarch.actor import Actor, endpoint, shutdown_context
from monarch.job import SlurmJob
from monarch.job.spmd import serve
from tests import slurm

SCRIPT = """
import os, sys, time
from pathlib import Path

rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
Path(sys.argv[1], rank).write_text(repr(time.time()))
"""


class Teller(Actor):
    @endpoint
    def node(self) -> str:
        return os.environ["SLURMD_NODENAME"]


class Round:
    """One round: each way once."""

    def __init__(self, cluster: slurm.Cluster, nodes: int, folder: Path) -> None:
        self.took: dict[str, float] = {}
        self._cluster, self._nodes, self._folder = cluster, nodes, folder
        self._script = folder / "train.py"
        self._script.write_text(SCRIPT)
        self._options: dict[str, Any] = {
            "log_dir": folder / "logs",
            "env": slurm.environment(),
        }

    def run(self) -> None:
        """Measure all."""
        self._srun("srun hostname", "hostname")
        self._srun("srun python -c pass", sys.executable, "-c", "pass")
        self._srun("srun python train.py", sys.executable, str(self._script), str(self._folder))
        self._sbatch()
        self._actors()
        self._served()
        self._cluster.wait_for(self._cluster.is_idle, "the nodes are not idle")

    def _srun(self, what: str, *words: str) -> None:
        self._cluster.wait_for(self._cluster.is_idle, "the nodes are not idle")
        began = time.perf_counter()
        subprocess.run(["srun", f"--nodes={self._nodes}", *words], check=True, capture_output=True)
        self.took[what] = time.perf_counter() - began

    def _sbatch(self) -> None:
        """A batch job whose script begins with srun, as that of a SlurmJob."""
        self._cluster.wait_for(self._cluster.is_idle, "the nodes are not idle")
        command = f"srun {sys.executable} -c pass; touch {self._folder}/done"
        began = time.perf_counter()
        self._cluster.command(
            "sbatch", f"--nodes={self._nodes}", "--output=/dev/null", f"--wrap={command}"
        )
        done = self._folder / "done"
        self._cluster.wait_for(done.exists, "the job does not end")
        self.took["sbatch of srun python -c pass"] = time.perf_counter() - began
        done.unlink()

    def _actors(self) -> None:
        self._cluster.wait_for(self._cluster.is_idle, "the nodes are not idle")
        began = time.perf_counter()
        job = SlurmJob({"trainers": self._nodes}, **self._options)
        job.apply()
        self.took["SlurmJob: submitted"] = time.perf_counter() - began
        hosts = job.state(None).trainers
        self.took["SlurmJob: attached"] = time.perf_counter() - began
        for what in ("SlurmJob: first answer", "the next mesh there: first answer"):
            again = time.perf_counter()
            procs = hosts.spawn_procs({"gpus": 1})
            procs.spawn("teller", Teller).node.call().get()
            self.took[what] = time.perf_counter() - (began if "SlurmJob" in what else again)
            procs.stop().get()
        began = time.perf_counter()
        job.kill()
        self.took["kill()"] = time.perf_counter() - began
        shutdown_context(reason="the round has ended")

    def _served(self) -> None:
        self._cluster.wait_for(self._cluster.is_idle, "the nodes are not idle")
        words = ["torchrun", f"--nnodes={self._nodes}", "--nproc-per-node=1"]
        began = time.time()
        job = serve(
            [*words, str(self._script), str(self._folder)], "slurm", self._options,
            cached_path=None,
        )  # fmt: skip
        for what in ("serve and run_spmd: script begins", "run_spmd again: script begins"):
            job.run_spmd()
            ranks = [self._folder / str(rank) for rank in range(self._nodes)]
            self.took[what] = max(float(path.read_text()) for path in ranks) - began
            began = time.time()
        job.kill()
        shutdown_context(reason="the round has ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if why := slurm.why_not():
        raise SystemExit(why)
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.environ["XDG_RUNTIME_DIR"] = name
        folder = Path(name)
        with slurm.cluster_up(folder / "slurm", given.nodes) as cluster:
            os.environ["SLURM_CONF"] = str(cluster.conf)
            for _ in range(given.rounds):
                one = Round(cluster, given.nodes, folder)
                one.run()
                for what, seconds in one.took.items():
                    found[what].append(seconds)
    print(f"{given.nodes} nodes, {given.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for what, all_of_it in found.items():
        print(f"{what:36} {statistics.median(all_of_it):7.2f} s")


if __name__ == "__main__":
    main()
