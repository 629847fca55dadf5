"""From the SIGKILL of a rank to the next optimizer step.

    python -m tests.benchmarks.training_recovery [--rounds 3] [--ranks 4]

    all anew         torchrun ends with the rank, and is called again: all ranks, from a checkpoint
    depth one        ElasticMesh: the rank comes back in its place, with the state of a peer
    depth two        ElasticMesh of replicas of one rank: the others go on without it
    depth three      ElasticMesh without `restart`: a new job, with the state of the ranks left
    torchft          its Manager and LighthouseServer, heartbeats as they are by default
    torchft, 500 ms  with a heartbeat time-out of half a second

All train the same model, and average its gradients by one all_reduce. One rank kills itself before
an all_reduce, and writes down when; rank 0 (in depth one to three and torchft it lives, with
torchrun it is a new process) writes down the end of each optimizer step. Told is the time from the
kill to the end of the step that it interrupted: medians, in seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch.actor import ProcMesh, endpoint, this_host
from monarch.job import ProcessJob
from monarch.spmd import ElasticActor, ElasticMesh

STEPS = 40  # the kill is at step 15
TORCH = ("torch", "torch.distributed", "torch._dynamo")

MODEL = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

torch.set_num_threads(1)
KILLED_AT = 15

class Model:
    def __init__(self, folder):
        self.folder = Path(folder)
        torch.manual_seed(0)
        layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def gradients(self, step, rank):
        torch.manual_seed(1000 * step + rank)
        inputs, labels = torch.randn(32, 64), torch.randint(10, (32,))
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(inputs), labels).backward()
        return torch.cat([p.grad.flatten() for p in self.model.parameters()])

    def apply(self, gradients, step, rank):
        at = 0
        for p in self.model.parameters():
            p.grad.copy_(gradients[at : at + p.numel()].view_as(p))
            at += p.numel()
        self.optimizer.step()
        if rank == 0:
            with open(self.folder / "steps", "a") as file:
                file.write(f"{step} {time.time()!r}\\n")

    def maybe_die(self, step, unlucky):
        killed = self.folder / "killed"
        if unlucky and step >= KILLED_AT and not killed.exists():
            killed.write_text(f"{step} {time.time()!r}")
            os.kill(os.getpid(), signal.SIGKILL)
"""

TORCHRUN = (
    MODEL
    + """
folder, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
one, step = Model(folder), 0
saved = Path(folder, "checkpoint")
if saved.exists():
    state = torch.load(saved)
    one.load(state)
    step = state["step"]
while step < steps:
    gradients = one.gradients(step, rank)
    one.maybe_die(step, rank == size - 1)
    dist.all_reduce(gradients)
    one.apply(gradients / size, step, rank)
    step += 1
    if rank == 0 and step % 10 == 0:
        torch.save({**one.state(), "step": step}, str(saved) + ".new")
        os.replace(str(saved) + ".new", saved)
dist.destroy_process_group()
"""
)

TORCHFT = (
    MODEL
    + """
from datetime import timedelta
from torchft import Manager, ProcessGroupGloo

folder, rank, size = sys.argv[1], *map(int, sys.argv[2:4])
one = Model(folder)
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=60)), load_state_dict=one.load,
    state_dict=one.state, min_replica_size=1, use_async_quorum=False, rank=0, world_size=1,
    store_addr="localhost", store_port=store.port, replica_id=f"replica{rank}",
    hostname="localhost", timeout=timedelta(seconds=60), init_sync=False,
)
while True:  # until it is killed
    manager.start_quorum()
    step = manager.current_step()
    gradients = one.gradients(step, rank)
    one.maybe_die(step, rank == size - 1 and manager.num_participants() == size)
    manager.allreduce(gradients).wait()
    if manager.should_commit():
        one.apply(gradients, step, rank)
"""
)


class Trainer(ElasticActor):
    """The same model on our actors."""

    def __init__(self, folder: str) -> None:
        names: dict[str, Any] = {}
        exec(MODEL, names)
        self.one: Any = names["Model"](folder)

    def state_dict(self) -> Any:
        """That of the model and the optimizer."""
        return self.one.state()

    def load_state_dict(self, state: Any) -> None:
        """Take it."""
        self.one.load(state)

    @endpoint
    def train(self, until: int) -> int:
        """Train up to that step."""
        import torch.distributed as dist

        while self.step < until:
            world = self.world
            gradients = self.one.gradients(self.step, world.rank)
            self.one.maybe_die(self.step, world.rank == world.size - 1)
            dist.all_reduce(gradients)
            self.one.apply(gradients / world.size, self.step, world.rank)
            self.step += 1
        return self.step


def all_anew(folder: str, ranks: int) -> None:
    """By torchrun, twice."""
    script = Path(folder, "train.py")
    script.write_text(TORCHRUN)
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             "--nproc-per-node", str(ranks), str(script), folder, str(STEPS)],
            check=False, capture_output=True, timeout=240,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def depth_one(folder: str, ranks: int) -> None:
    """A rank is restarted."""

    def spawn(_replica: int) -> ProcMesh:
        return this_host().spawn_procs({"gpus": ranks}, preload=TORCH, restart="on-failure")

    elastic(spawn, folder, 1)


def depth_two(folder: str, ranks: int) -> None:
    """A replica is left out."""

    def spawn(_replica: int) -> ProcMesh:
        return this_host().spawn_procs({"gpus": 1}, preload=TORCH)

    elastic(spawn, folder, ranks)


def depth_three(folder: str, ranks: int) -> None:
    """A job is applied anew."""
    jobs: list[ProcessJob] = []

    def spawn(_replica: int) -> ProcMesh:
        jobs.append(ProcessJob({"hosts": 1}))
        hosts = jobs[-1].state(cached_path=None).hosts
        return hosts.spawn_procs({"gpus": ranks}, preload=TORCH)

    try:
        elastic(spawn, folder, 1)
    finally:
        for job in jobs:
            job.kill()


def elastic(spawn: Callable[[int], ProcMesh], folder: str, replicas: int) -> None:
    """Train by an `ElasticMesh`."""
    with ElasticMesh(spawn, Trainer, args=(folder,), replicas=replicas) as mesh:
        mesh.run("train", STEPS)


def torchft_alone(heartbeat_ms: int | None) -> Callable[[str, int], None]:
    """Processes with a torchft Manager each."""

    def train(folder: str, ranks: int) -> None:
        server: Any = importlib.import_module("torchft.coordination").LighthouseServer
        given: Any = {} if heartbeat_ms is None else {"heartbeat_timeout_ms": heartbeat_ms}
        lighthouse: Any = server(bind="127.0.0.1:0", min_replicas=1, **given)
        port = lighthouse.address().rsplit(":", 1)[1]
        env = {
            **os.environ,
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
            "OMP_NUM_THREADS": "1",
        }
        script = Path(folder, "train.py")
        script.write_text(TORCHFT)
        ranks_of = [
            subprocess.Popen(
                [sys.executable, str(script), folder, str(rank), str(ranks)],
                env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            until = time.monotonic() + 240
            while recovered(folder) is None and time.monotonic() < until:
                time.sleep(0.02)
        finally:
            for each in ranks_of:
                each.kill()
                each.wait()
            lighthouse.shutdown()

    return train


def recovered(folder: str) -> float | None:
    """Seconds from the kill to the end of the step that it interrupted, if that was done."""
    try:
        step, killed = map(float, Path(folder, "killed").read_text().split())
        steps = [line.split() for line in Path(folder, "steps").read_text().splitlines()]
    except (FileNotFoundError, ValueError):
        return None
    done = [float(at) for number, at in steps if float(number) >= step]
    return min((at - killed for at in done), default=None)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", help="the beginning of a way's name")
    given = parser.parse_args()
    ways: dict[str, Callable[[str, int], None]] = {
        "all anew": all_anew,
        "depth one": depth_one,
        "depth two": depth_two,
        "depth three": depth_three,
    }
    if importlib.util.find_spec("torchft"):
        ways |= {"torchft": torchft_alone(None), "torchft, 500 ms": torchft_alone(500)}
    else:
        print("torchft is not installed (pip install torchft), and is left out")
    times: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        for way, train in ways.items():
            if given.only and not way.startswith(given.only):
                continue
            with tempfile.TemporaryDirectory() as folder:
                train(folder, given.ranks)
                took = recovered(folder)
                if took is None:
                    sys.exit(f"{way}: no step followed the kill")
                times.setdefault(way, []).append(took)
                print(f"{way}: {took:.3f}", file=sys.stderr, flush=True)
    load = os.getloadavg()[0]
    print(f"{given.ranks} ranks, {given.rounds} rounds, load {load:.1f} on {os.cpu_count()} cores")
    whole = statistics.median(times.get("all anew", [0.0]))
    print(f"{'way':16} {'median':>8} {'best':>8} {'worst':>8} {'faster by':>10}")
    for way, found in times.items():
        middle = statistics.median(found)
        print(
            f"{way:16} {middle:8.2f} {min(found):8.2f} {max(found):8.2f} {whole / middle:9.1f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
