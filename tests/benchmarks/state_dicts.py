"""A state dict from one trainer to several generators on one host: ours, torchmonarch's, Ray's.

    python -m tests.benchmarks.state_dicts [--peer PEER_PYTHON] [--ray RAY_PYTHON]
        [--mib 2048] [--tensors 500] [--generators 4] [--rounds 3]

Each side in a process of its own, in turn; this file runs under all three interpreters. Timed is
what a trainer waits for to have it published, and what passes until all generators, which begin at
once, have it in memory of their own. The best round counts; each generator looks at the last
element of each tensor. torchmonarch: an RDMABuffer a tensor, which gives no consistent version.
Ray: `put` of a dict of arrays, and `get` and a copy into arrays that are there.

Memory: about (2 + GENERATORS) times the size, ours 2 times more for the two versions that it keeps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20


def sizes(mib: int, tensors: int) -> list[int]:
    """Elements of each: a few are large, most are small, as in a transformer."""
    weights = [1 + 15 * (n % 7 == 0) + 4 * (n % 7 in (1, 2)) for n in range(tensors)]
    return [mib * MIB // 4 * weight // sum(weights) for weight in weights]


def best(rounds: int, work: Callable[[int], float]) -> float:
    """The shortest of so many, after one that does not count."""
    work(1)
    return min(work(n + 2) for n in range(rounds))


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def on_actors(options: argparse.Namespace, ours: bool) -> dict[str, float]:
    """Ours, or torchmonarch: the same actors but for how the bytes get across."""
    import torch

    from monarch.actor import Actor, current_rank, endpoint, this_host
    from monarch.rdma import RDMABuffer

    elements = sizes(options.mib, options.tensors)

    def state() -> dict[str, Any]:
        return {f"layer.{n}.weight": torch.zeros(size) for n, size in enumerate(elements)}

    class Trainer(Actor):
        def __init__(self) -> None:
            self.state = state()
            self.source: Any = None

        @endpoint
        def handles(self) -> Any:
            if ours:
                from monarch.rdma import put_state_dict

                self.source = put_state_dict(self.state)
                return self.source.handle
            self.buffers = {n: RDMABuffer(t.view(torch.uint8)) for n, t in self.state.items()}
            return self.buffers

        @endpoint
        def publish(self, value: int) -> float:
            for tensor in self.state.values():
                tensor.fill_(value)
            return timed(self.source.refresh) if ours else 0.0

    class Generator(Actor):
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.state = state()
            self.reader: Any = None

        @endpoint
        async def pull(self, handles: Any, value: int) -> int:
            if ours:
                from monarch.rdma import StateDictReader

                self.reader = self.reader or StateDictReader(handles, self.state)
                await self.reader.pull()
            else:
                await asyncio.gather(
                    *(b.read_into(self.state[n].view(torch.uint8)) for n, b in handles.items())
                )
            assert all(int(tensor[-1]) == value for tensor in self.state.values())
            return current_rank().rank

    trainers = this_host().spawn_procs({"gpus": 1})
    trainer: Any = trainers.spawn("trainer", Trainer)
    generators = this_host().spawn_procs({"gpus": options.generators})
    pullers: Any = generators.spawn("generators", Generator)
    handles = trainer.handles.call_one().get()
    published: list[float] = []

    def once(value: int) -> float:
        published.append(trainer.publish.call_one(value).get())
        return timed(lambda: pullers.pull.call(handles, value).get())

    pulled = best(options.rounds, once)
    for mesh in (generators, trainers):
        mesh.stop().get()
    return {"publish": min(published[1:]), "pull": pulled}


def on_ray(options: argparse.Namespace) -> dict[str, float]:
    """Ray's object store."""
    import importlib

    import numpy

    ray: Any = importlib.import_module("ray")
    ray.init(
        num_cpus=options.generators + 2, include_dashboard=False, logging_level="ERROR",
        log_to_driver=False, _metrics_export_port=None,
        object_store_memory=int(2.5 * options.mib * MIB),
    )  # fmt: skip
    elements = sizes(options.mib, options.tensors)

    class Trainer:
        def __init__(self) -> None:
            self.state = {
                f"layer.{n}.weight": numpy.zeros(size, numpy.float32)
                for n, size in enumerate(elements)
            }

        def publish(self, value: int) -> tuple[Any, float]:
            for array in self.state.values():
                array.fill(value)
            began = time.perf_counter()
            self.ref = ray.put(self.state)
            return [self.ref], time.perf_counter() - began

    class Generator:
        def __init__(self) -> None:
            self.state = [numpy.zeros(size, numpy.float32) for size in elements]

        def pull(self, refs: Any, value: int) -> None:
            for mine, array in zip(self.state, ray.get(refs[0]).values(), strict=True):
                numpy.copyto(mine, array)
            assert all(int(array[-1]) == value for array in self.state)

    trainer = ray.remote(Trainer).remote()
    pullers = [ray.remote(Generator).remote() for _ in range(options.generators)]
    published: list[float] = []

    def once(value: int) -> float:
        refs, seconds = ray.get(trainer.publish.remote(value))
        published.append(seconds)
        return timed(lambda: ray.get([puller.pull.remote(refs, value) for puller in pullers]))

    pulled = best(options.rounds, once)
    ray.shutdown()
    return {"publish": min(published[1:]), "pull": pulled}


def main() -> None:
    """Run the sides in turn and print the table; or, with --side, one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="an interpreter with torchmonarch installed")
    parser.add_argument("--ray", help="an interpreter with ray installed")
    for name, default in (("mib", 2048), ("tensors", 500), ("generators", 4), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--side", choices=["ours", "peer", "ray"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side = (
            on_ray(options) if options.side == "ray" else on_actors(options, options.side == "ours")
        )
        print("RESULT " + json.dumps(side), flush=True)
        return
    sides = {"ours": sys.executable, "peer": options.peer, "ray": options.ray}
    given = ["mib", "tensors", "generators", "rounds"]
    arguments = [f"--{name}={getattr(options, name)}" for name in given]
    total = options.mib * options.generators
    print(f"{'':6} {'publish (s)':>12} {'pull (s)':>10} {'MiB/s to all':>14} {'times':>7}")
    ours = 0.0
    for side, python in sides.items():
        if not python:
            continue
        command = [python, __file__, "--side", side, *arguments]
        env = {k: v for k, v in os.environ.items() if side == "ours" or k != "PYTHONPATH"}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=3600, check=False
        )
        line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
        if line is None:
            print(f"{side:6} failed with status {done.returncode}:\n{done.stderr[-3000:]}")
            continue
        found = json.loads(line[7:])
        ours = ours or found["pull"]
        print(
            f"{side:6} {found['publish']:12.2f} {found['pull']:10.2f} "
            f"{total / found['pull']:14,.0f} {found['pull'] / ours:7.1f}"
        )


if __name__ == "__main__":
    main()
