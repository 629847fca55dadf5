"""torch's own ways to train, on groups and DeviceMeshes of a mesh: all give what one rank gives."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, endpoint
from tests.integration.spmd.conftest import Trainers, on

STEPS, BATCH, WIDTH = 4, 8, 6


class Learner(Actor):
    """Fits a small model to data that all ranks know, each to its share of it."""

    @endpoint
    def fit(self, way: str, device_mesh: Any) -> list[float]:
        """The weights after some steps, by that way of torch."""
        import torch
        import torch.distributed as dist

        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4), torch.nn.Linear(4, 2))
        trained = _distributed(way, model, device_mesh)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
        splits = way in ("ddp", "fsdp")
        rank, size = (dist.get_rank(), dist.get_world_size()) if splits else (0, 1)
        for _ in range(STEPS):
            inputs = torch.randn(BATCH, WIDTH)[rank::size]
            optimizer.zero_grad()
            (trained(inputs) ** 2).mean().backward()
            optimizer.step()
        found: list[float] = []
        for parameter in model.parameters():
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            found += whole.detach().flatten().tolist()
        return found


def _distributed(way: str, model: Any, device_mesh: Any) -> Any:
    if way == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    if way == "fsdp":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model, mesh=device_mesh)
    if way == "tensor parallel":
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        return parallelize_module(model, device_mesh, plan)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp", "tensor parallel"])
def test_a_way_to_train_gives_the_weights_of_one_rank(trainers: Trainers, way: str) -> None:
    procs = trainers(ranks=2)
    learners = on(procs, Learner)
    device_mesh = procs.device_mesh()
    alone = learners.fit.call("alone", device_mesh).get(timeout=120).item(ranks=0)
    together = learners.fit.call(way, device_mesh).get(timeout=120)
    for weights in together.values():
        assert weights == pytest.approx(alone, abs=1e-5)
