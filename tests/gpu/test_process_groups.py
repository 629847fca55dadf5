"""Process groups, DDP and DTensor on GPUs. What needs a GPU for each rank says so."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import ProcMesh
from tests.conftest import Faults
from tests.gpu.conftest import TORCH, Procs, gpus
from tests.gpu.trainers import Trainer


@pytest.fixture
def one_each(spawn_procs: Procs) -> ProcMesh:
    """As many procs as there are GPUs."""
    return spawn_procs({"gpus": gpus()}, name="trainers", preload=TORCH)


def test_a_group_with_a_gpu_for_each_rank_uses_nccl(one_each: ProcMesh) -> None:
    one_each.init_process_group()
    trainers: Any = one_each.spawn("trainers", Trainer)
    assert all("cuda:nccl" in text for text in trainers.backend.call().get().values())
    assert set(trainers.add.call(2.0, "cuda").get().values()) == {2.0 * gpus()}
    assert set(trainers.add.call(2.0, "cpu").get().values()) == {2.0 * gpus()}


def test_ddp_trains_on_gpus(one_each: ProcMesh) -> None:
    one_each.init_process_group()
    trainers: Any = one_each.spawn("trainers", Trainer)
    for losses in trainers.fit.call(20).get().values():
        assert losses[-1] < losses[0] / 10


def test_a_device_mesh_is_one_of_gpus(one_each: ProcMesh) -> None:
    mesh = one_each.device_mesh()
    trainers: Any = one_each.spawn("trainers", Trainer)
    found = trainers.scattered.call(mesh).get()
    assert {device.partition(":")[0] for device, _ in found.values()} == {"cuda"}
    assert {total for _, total in found.values()} == {16.0}


def test_ranks_that_share_a_gpu_get_gloo(spawn_procs: Procs) -> None:
    procs = spawn_procs({"gpus": gpus() + 1}, name="trainers", preload=TORCH)
    procs.init_process_group()
    trainers: Any = procs.spawn("trainers", Trainer)
    assert not any("nccl" in text for text in trainers.backend.call().get().values())
    assert set(trainers.add.call(1.0, "cuda").get().values()) == {1.0 * (gpus() + 1)}


def test_nccl_with_less_than_a_gpu_for_each_rank_is_refused(spawn_procs: Procs) -> None:
    procs = spawn_procs({"gpus": gpus() + 1}, name="trainers", preload=TORCH)
    with pytest.raises(ValueError, match="nccl needs a GPU of its own"):
        procs.init_process_group("nccl")
    procs.init_process_group("gloo")  # the mesh is usable


def test_a_rank_that_dies_ends_the_nccl_collectives_of_the_others(
    one_each: ProcMesh, faults: Faults
) -> None:
    if gpus() < 2:
        pytest.skip("one GPU: collectives between ranks by NCCL need two")
    one_each.init_process_group()
    trainers: Any = one_each.spawn("trainers", Trainer)
    trainers.add.call(1.0, "cuda").get()
    rest = trainers.slice(gpus=slice(1, None))
    waiting = rest.add.call(1.0, "cuda")
    trainers.slice(gpus=0).kill.broadcast()
    with pytest.raises(Exception, match="killed by SIGKILL"):
        waiting.get()
    faults.take_ranks({0})
