"""Actors for tests of trainings that go on after deaths; a file tells a rank where to die."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from monarch._src.spmd.rank_watch import active
from monarch.actor import context, endpoint
from monarch.spmd import ElasticActor
from tests.integration.gates import Gate

WIDTH = 4


class Fitter(ElasticActor):
    """Fits weights by gradients that all ranks average, with momentum.

    The data of a step depends on the step and the rank only, so the weights after some steps are
    the same whether ranks have died or not, as long as there are as many of them.
    """

    def __init__(self, folder: str, seed: int = 0) -> None:
        import torch

        self.folder = Path(folder)
        # Other weights in each process: those of the first rank count.
        torch.manual_seed(os.getpid() + seed)
        self.weights = torch.randn(WIDTH)
        self.momentum = torch.zeros(WIDTH)
        self.losses: list[float] = []
        self.world_sizes: list[int] = []  # of the group, at each step

    def state_dict(self) -> dict[str, Any]:
        """The weights, and what the optimizer knows."""
        self.die_if_told("offer")
        if self.is_told("stop-offer"):
            os.kill(os.getpid(), signal.SIGSTOP)
        optimizer = {"momentum": [self.momentum]}
        lists = {"losses": self.losses, "world_sizes": self.world_sizes}
        return {"weights": self.weights, "optimizer": optimizer, **lists}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them."""
        self.die_if_told("take")
        self.weights = state["weights"]
        (self.momentum,) = state["optimizer"]["momentum"]
        self.losses, self.world_sizes = state["losses"], state["world_sizes"]
        if (self.folder / "join").exists():
            self.die_when_it_joins()

    def on_group_formed(self) -> None:
        """Die here if told so."""
        self.die_if_told("formed")

    @endpoint
    def train(self, until: int, raising: int = -1) -> tuple[int, list[float]]:
        """Train up to that step; rank 1 raises at step `raising`. Returns the step, and weights."""
        self._train(until, raising)
        return self.step, self.weights.tolist()

    def _train(self, until: int, raising: int = -1) -> None:
        import torch
        import torch.distributed as dist

        while self.step < until:
            if self.step == raising and self.world.rank == 1:
                raise ValueError("a bad batch")
            torch.manual_seed(1000 * self.step + self.world.rank)
            inputs = torch.randn(8, WIDTH)
            error = inputs @ self.weights - inputs.sum(1)
            gradient = 2 * inputs.T @ error / len(inputs)
            loss = (error**2).mean()
            self.die_if_told(f"step{self.step}")
            self.hang_if_told(f"hang{self.step}")
            if self.is_told(f"stop{self.step}"):
                os.kill(os.getpid(), signal.SIGSTOP)
            dist.all_reduce(gradient)
            dist.all_reduce(loss)
            if self.is_told(f"late{self.step}"):
                watch = active()
                assert watch is not None
                watch.state.on_peer_gone("late news")
            self.momentum = 0.5 * self.momentum + gradient / self.world.size
            self.weights = self.weights - 0.05 * self.momentum
            self.losses.append(loss.item() / self.world.size)
            self.world_sizes.append(self.world.size)
            self.step += 1
            self.die_if_told(f"after{self.step}")

    @endpoint
    def train_at(self, gate: Gate, until: int) -> None:
        """Train up to that step, behind a gate."""
        gate.pass_through()
        self._train(until)

    @endpoint
    def train_until_replicas(self, count: int) -> int:
        """Train until there are as many replicas; returns the step."""
        while self.world.replicas < count:
            self._train(self.step + 1)
        return self.step

    @endpoint
    def train_and_interrupt(self, pid: int) -> None:
        """Train without end; interrupt that process on the way."""
        while True:
            self._train(self.step + 1)
            if self.step == 5 and self.world.rank == 0:
                os.kill(pid, signal.SIGINT)

    @endpoint
    def train_until_told(self) -> tuple[int, list[float], list[float], list[int]]:
        """Train until the file `enough` is there.

        Returns the step and the weights, and for all steps the losses and the sizes of the group.
        """
        import torch
        import torch.distributed as dist

        while True:
            # All ranks see it at the same step.
            enough = torch.tensor(float((self.folder / "enough").exists()))
            dist.all_reduce(enough)
            if enough:
                return self.step, self.weights.tolist(), self.losses, self.world_sizes
            self._train(self.step + 1)

    @endpoint
    def die(self) -> None:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)

    def die_if_told(self, where: str) -> None:
        """Kill this process if the file of that name is there, or that with this rank's number."""
        if self.is_told(where):
            os.kill(os.getpid(), signal.SIGKILL)

    def hang_if_told(self, where: str) -> None:
        """Wait for ever if told so."""
        if self.is_told(where):
            threading.Event().wait()

    def is_told(self, where: str) -> bool:
        """Whether the file of that name is there, or that with this rank's number; removes it."""
        rank = context().actor_instance.rank.rank
        for name in (where, f"{where}-rank{rank}"):
            try:
                os.unlink(self.folder / name)
            except FileNotFoundError:
                continue
            return True
        return False

    def die_when_it_joins(self) -> None:
        """Have the next `init_process_group` here end the process."""
        import torch.distributed as dist

        def die(*_args: Any, **_options: Any) -> None:
            os.unlink(self.folder / "join")
            os.kill(os.getpid(), signal.SIGKILL)

        dist.init_process_group = die  # pyright: ignore[reportPrivateImportUsage]


def without_kills(begun: list[float], sizes: list[int]) -> tuple[list[float], list[float]]:
    """The weights and the losses of `Fitter` from these weights on, computed in this process.

    `sizes` are those of the group at each step.
    """
    import torch

    weights, momentum = torch.tensor(begun), torch.zeros(WIDTH)
    losses: list[float] = []
    for step, size in enumerate(sizes):
        gradients: list[Any] = []
        loss = 0.0
        for rank in range(size):
            torch.manual_seed(1000 * step + rank)
            inputs = torch.randn(8, WIDTH)
            error = inputs @ weights - inputs.sum(1)
            gradients.append(2 * inputs.T @ error / len(inputs))
            loss += (error**2).mean().item()
        momentum = 0.5 * momentum + sum(gradients) / size
        weights = weights - 0.05 * momentum
        losses.append(loss / size)
    found: list[float] = weights.tolist()
    return found, losses


class Saver(Fitter):
    """It also saves what it has, after each step."""

    def load_checkpoint(self) -> bool:
        """What was saved last."""
        import torch

        path = self.folder / "checkpoint"
        if not path.exists():
            return False
        state = torch.load(path)
        self.weights, self.momentum, self.step = state["weights"], state["momentum"], state["step"]
        return True

    @endpoint
    def save(self) -> None:
        """Save what it has."""
        import torch

        if self.world.rank == 0:
            state = {"weights": self.weights, "momentum": self.momentum, "step": self.step}
            torch.save(state, self.folder / "checkpoint")


class Sharded(ElasticActor):
    """Rank n of each replica has part n of the weights; only replicas average."""

    def __init__(self, folder: str) -> None:
        import torch

        rank = context().actor_instance.rank.rank
        self.folder = Path(folder)
        self.part = torch.full((WIDTH,), float(10 * rank))

    def state_dict(self) -> dict[str, Any]:
        """This part."""
        return {"part": self.part}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""
        self.part = state["part"]

    @endpoint
    def train(self, until: int) -> list[float]:
        """Add 1 to all elements at each step.

        A rank that is told to die does so when all others have begun that step: if only one of two
        parts had the step before, no whole state would be left.
        """
        import torch
        import torch.distributed as dist

        while self.step < until:
            rank = context().actor_instance.rank.rank
            (self.folder / f"begun{self.step}-{self.world.rank}").touch()
            path = self.folder / f"step{self.step}-rank{rank}"
            if self.world.replica == 0 and path.exists():
                while len(list(self.folder.glob(f"begun{self.step}-*"))) < self.world.size:
                    os.sched_yield()
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            one = torch.ones(WIDTH)
            dist.all_reduce(one)
            self.part += one / self.world.size
            self.step += 1
        return self.part.tolist()


class Holder(Fitter):
    """It has a lock in its state, from a file on."""

    def state_dict(self) -> dict[str, Any]:
        """With the lock, as long as the file `lock` is there."""
        found = super().state_dict()
        if (self.folder / "lock").exists():
            found["optimizer"]["lock"] = threading.Lock()
        return found
