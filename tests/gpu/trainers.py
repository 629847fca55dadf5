"""Actors with torch on a GPU."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

from monarch.actor import Actor, endpoint
from monarch.rdma import RDMABuffer


def numbers(count: int, seed: int) -> Any:
    """A tensor on the GPU with reproducible values."""
    import torch

    return torch.arange(count, dtype=torch.float32, device="cuda") * (seed + 1)


class Holder(Actor):
    """An actor with tensors in memory of its GPU."""

    def __init__(self) -> None:
        self.tensor: Any = None

    @endpoint
    def make(self, count: int, seed: int) -> RDMABuffer:
        """A buffer of a new tensor."""
        self.tensor = numbers(count, seed)
        return RDMABuffer(self.tensor)

    @endpoint
    def is_as_made(self, seed: int) -> bool:
        """Whether the tensor has the values that `numbers` gives."""
        return bool((self.tensor == numbers(self.tensor.numel(), seed)).all())

    @endpoint
    def read(self, buffer: RDMABuffer, count: int, seed: int) -> tuple[bool, str]:
        """Read a peer's tensor into one of this GPU: whether it is as made, and the transport."""
        import torch

        room = torch.zeros(count, device="cuda")
        buffer.read_into(room).get()
        return bool((room == numbers(count, seed)).all()), buffer.backend

    @endpoint
    def double(self, tensor: Any) -> Any:
        """Twice a tensor, wherever it is."""
        return tensor * 2

    @endpoint
    def device_of(self, tensor: Any) -> str:
        """The device that an argument has arrived on."""
        return str(tensor.device)

    @endpoint
    def allocate(self, nbytes: int) -> int:
        """Keep memory of the GPU; the number of this process."""
        import torch

        self.tensor = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        return os.getpid()

    @endpoint
    def exhaust(self) -> None:
        """Ask for more memory than any GPU has."""
        import torch

        torch.zeros(1 << 46, dtype=torch.uint8, device="cuda")


class Trainer(Actor):
    """One rank of a program that trains on GPUs."""

    @endpoint
    def backend(self) -> str:
        """The backend of the default group."""
        import torch.distributed as dist

        return str(dist.get_backend_config())

    @endpoint
    def add(self, value: float, device: str) -> float:
        """The sum of `value` over all ranks."""
        import torch

        dist: Any = importlib.import_module("torch.distributed")
        tensor = torch.full((4,), value, device=device)
        dist.all_reduce(tensor)
        return float(tensor[0])

    @endpoint
    def kill(self) -> None:
        """End this rank as a machine that runs out of memory does."""
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def fit(self, steps: int) -> list[float]:
        """Train a small model with DistributedDataParallel on the GPU; the losses."""
        torch: Any = importlib.import_module("torch")
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        inputs = torch.randn(64, 8, device="cuda")
        wanted = inputs.sum(1, keepdim=True)
        losses: list[float] = []
        for _ in range(steps):
            loss = ((model(inputs) - wanted) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    @endpoint
    def scattered(self, mesh: Any) -> tuple[str, float]:
        """Where a DTensor over a device mesh is, and its sum."""
        import torch
        from torch.distributed.tensor import Shard, distribute_tensor

        local: Any = distribute_tensor(torch.ones(8, 2), mesh, [Shard(0)])
        return str(local.device), float(local.sum().full_tensor())
