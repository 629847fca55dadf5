"""A training step of a small transformer, data parallel: tensors of a mesh beside DDP over gloo.

    python -m tests.benchmarks.tensor_training [--ranks 4] [--steps 20] [--rounds 5]

Both sides train the same model on ranks with one thread each, in turns within one run. `eager`: the
cell issues every operation. `region`: the step is compiled. It reduces each gradient alone, or all
at once, as DDP does with its buckets. The best round of each is shown, in milliseconds a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import monarch
import monarch.random
from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env

WIDTH, LENGTH, BATCH = 128, 32, 4
RATE = 0.01


def model() -> nn.Module:
    """A transformer with 270,000 parameters."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(LENGTH, WIDTH), layers, nn.Linear(WIDTH, LENGTH))


class Trainer(Actor):
    """Trains by DDP on one rank."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    @endpoint
    def begin(self) -> None:
        """Make the process group and the model."""
        torch.distributed.init_process_group("gloo")
        torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
        self.model = nn.parallel.DistributedDataParallel(model())
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), RATE)
        self.x, self.y = torch.randn(2, BATCH, LENGTH, LENGTH).unbind()

    @endpoint
    def train(self, steps: int) -> float:
        """Train, and return the last loss."""
        loss: Any = None
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(self.x), self.y)
            loss.backward()
            self.optimizer.step()
        return loss.item()


class MeshTraining:
    """Trains by tensors of the active mesh. `together`: reduces all gradients in one tensor."""

    def __init__(self, *, together: bool, compiled: bool) -> None:
        monarch.random.manual_seed(0)
        self._model = model()
        self._parameters: list[Any] = list(self._model.parameters())
        self._x, self._y = torch.randn(2, BATCH, LENGTH, LENGTH).unbind()
        self._together = together
        self._step: Any = monarch.compile(self._one_step) if compiled else self._one_step

    def train(self, steps: int) -> float:
        """Train, and return the last loss."""
        loss: Any = None
        for _ in range(steps):
            loss = self._step(self._x, self._y)
        return float(monarch.inspect(loss))

    def _one_step(self, x: Any, y: Any) -> Any:
        loss = nn.functional.mse_loss(self._model(x), y)
        gradients = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            for parameter, mean in zip(self._parameters, self._means(gradients), strict=True):
                parameter.sub_(mean, alpha=RATE)
        return loss.detach()

    def _means(self, gradients: Any) -> Any:
        if self._together:
            return monarch.reduce(gradients, "gpus", "avg")
        return [one.reduce("gpus", "avg") for one in gradients]


def sides_of(mesh: ProcMesh) -> dict[str, Callable[[int], Any]]:
    """The measured sides, each with a function that trains a number of steps."""
    ddp = mesh.spawn("ddp", Trainer)
    setup_torch_elastic_env(mesh)
    ddp.begin.call().get()
    return {
        "DDP": lambda steps: ddp.train.call(steps).get(),
        "tensors, eager, all at once": MeshTraining(together=True, compiled=False).train,
        "tensors, region, each gradient": MeshTraining(together=False, compiled=True).train,
        "tensors, region, all at once": MeshTraining(together=True, compiled=True).train,
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    preload = ["torch", "torch.distributed", "torch.nn.parallel"]
    mesh = this_host().spawn_procs({"gpus": given.ranks}, name="workers", preload=preload)
    with mesh.activate():
        monarch.remote(torch.set_num_threads).broadcast(1)
        sides = sides_of(mesh)
        best = dict.fromkeys(sides, float("inf"))
        for train in sides.values():
            train(4)  # makes groups, records regions
        for _ in range(given.rounds):
            for name, train in sides.items():
                began = time.perf_counter()
                train(given.steps)
                best[name] = min(best[name], (time.perf_counter() - began) / given.steps * 1e3)
    mesh.stop().get()
    print(f"| {given.ranks} ranks | ms a step | of DDP's |\n|---|---|---|")
    for name, took in best.items():
        print(f"| {name} | {took:.1f} | {took / best['DDP']:.2f} |")


if __name__ == "__main__":
    main()
