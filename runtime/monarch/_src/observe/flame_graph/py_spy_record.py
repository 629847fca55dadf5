"""Samples the stacks of ranks with py-spy, all at the same time.

Runs in: a child of the host agent, one for each request (`main`). See `observe.stacks.py_spy`.
Owns: the runs of py-spy, one for each rank. They end with this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from typing import IO

import msgspec

from monarch._src.observe.flame_graph.state import samples
from monarch._src.observe.flame_graph.state.samples import Stack
from monarch._src.observe.stacks.py_spy import PY_SPY, in_short, is_refusal, refusal
from monarch._src.system import process_table
from monarch._src.system.process import die_with_parent
from monarch._src.wire.messages import MeshSamples

SPARE_S = 20.0  # py-spy starts and writes its samples in this time
MOST_RANKS = 64  # of one host


class SampledRank(msgspec.Struct, array_like=True):
    """A rank to be sampled; with `pid` 0 it is not, for the reason in `why`."""

    rank: int
    pid: int
    why: str = ""


class SampleJob(msgspec.Struct, array_like=True):
    """The part of an order for one mesh."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    ranks: list[SampledRank]


class SampleOrder(msgspec.Struct, array_like=True):
    """The input. See `SampleStacks` for the last fields."""

    program: str
    jobs: list[SampleJob]
    seconds: int
    rate: int
    threads: bool
    native: bool
    nonblocking: bool


class SampleReport(msgspec.Struct, array_like=True):
    """The output. `problem`: why no rank could be sampled."""

    meshes: list[MeshSamples]
    problem: str = ""


class _Run:
    """A running py-spy that samples one rank."""

    def __init__(self, order: SampleOrder, rank: SampledRank) -> None:
        self.rank = rank
        # Both are closed with this process.
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.complaint: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        me = os.getpid()
        fd = self.output.fileno()
        flags = {"--native": order.native, "--nonblocking": order.nonblocking}
        self.process = subprocess.Popen(
            [
                order.program, "record", "--pid", str(rank.pid), "--format", "raw", "--threads",
                "--idle", "--function", "--full-filenames", "--duration", str(order.seconds),
                "--rate", str(order.rate), "--output", f"/dev/fd/{fd}",
                *(flag for flag, wanted in flags.items() if wanted),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.complaint,
            pass_fds=(fd,),
            preexec_fn=lambda: die_with_parent(me),  # noqa: PLW1509 - there is one thread here
        )  # fmt: skip

    def stacks(self, until: float, *, threads: bool) -> dict[Stack, int] | str:
        """Wait for its end; returns the counts of stacks, or why there are none."""
        try:
            status = self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "could not be sampled in time"
        self.output.seek(0)
        try:
            found = samples.parse(self.output.read().decode(errors="replace"))
        except ValueError as error:
            return f"could not be sampled: {PY_SPY} printed no valid samples: {error}"
        if found:
            return samples.stacks_of_rank(found, threads=threads)
        entry = process_table.entry(self.rank.pid)
        if entry is None or entry.state in process_table.DEAD_STATES:
            return "ended while it was sampled"
        self.complaint.seek(0)
        said = self.complaint.read().decode(errors="replace")
        if status == 0:
            return "could not be sampled: no sample succeeded"
        return refusal(said) if is_refusal(said) else f"could not be sampled: {in_short(said)}"


def sample(order: SampleOrder) -> SampleReport:
    """Sample all ranks of the order."""
    runs = {
        (job.mesh, rank.rank): _Run(order, rank)
        for job in order.jobs
        for rank in job.ranks
        if rank.pid
    }
    until = time.monotonic() + order.seconds + SPARE_S
    found = {key: run.stacks(until, threads=order.threads) for key, run in runs.items()}
    problems = [one for one in found.values() if isinstance(one, str)]
    if problems and len(problems) == len(found) and is_refusal(problems[0]):
        return SampleReport([], problems[0])
    meshes: list[MeshSamples] = []
    for job in order.jobs:
        by_rank: dict[int, dict[Stack, int]] = {}
        unread = [(rank.rank, rank.why) for rank in job.ranks if not rank.pid]
        for rank in job.ranks:
            one = found.get((job.mesh, rank.rank))
            if isinstance(one, str):
                unread.append((rank.rank, one))
            elif one is not None:
                by_rank[rank.rank] = one
        meshes.append(samples.of_mesh(job.mesh, job.name, job.labels, job.sizes, by_rank, unread))
    return SampleReport(meshes)


def main() -> None:
    """Read an order from stdin, write the report to stdout."""
    die_with_parent(os.getppid())
    with open(0, "rb", closefd=False) as orders:
        order = msgspec.msgpack.decode(orders.read(), type=SampleOrder)
    # Runs of py-spy are killed at the deadline; the timer ends this process if that fails.
    signal.setitimer(signal.ITIMER_REAL, order.seconds + 2 * SPARE_S)
    with open(1, "wb", closefd=False) as answer:
        answer.write(msgspec.msgpack.encode(sample(order)))
