"""Tensors of a mesh whose ranks are started again: the old ones are lost, and new ones work."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ProcMesh, RestartedError, SupervisionError
from monarch.observe import RankRestarting
from monarch.supervision import Restart
from tests.integration.tensor.conftest import TORCH

pytestmark = pytest.mark.slow

Restarts = queue.SimpleQueue[RankRestarting]


@pytest.fixture
def renewed(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Three procs, `gpus` 0 to 2, that are started again."""
    return spawn_procs({"gpus": 3}, name="renewed", preload=TORCH, restart=Restart(at_most=20))


def kill(mesh: ProcMesh, rank: int, restarts: Restarts) -> int:
    """Kill a rank, and wait until this process knows; returns its pid."""
    with mesh.activate():
        pid: int = monarch.remote(os.getpid).call().get(timeout=60).item(gpus=rank)
    os.kill(pid, signal.SIGKILL)
    assert restarts.get(timeout=60).failure.rank == rank
    return pid


def on_all(tensor: Any) -> list[Any]:
    """Its values by rank."""
    return [
        monarch.fetch_shard(tensor, dict(point)).get(timeout=60).tolist()
        for point in tensor.mesh.extent.points()
    ]


def test_tensors_that_are_made_after_a_restart_work_on_all_ranks(
    renewed: ProcMesh, restarts: Restarts
) -> None:
    double = monarch.remote(lambda x: x * 2)
    with renewed.activate():
        old = torch.ones(2) + renewed.rank_tensor("gpus")
        assert on_all(double(old).reduce()) == [[12.0, 12.0]] * 3
        for life in range(2):
            kill(renewed, 2, restarts)
            new = torch.ones(2) * life + renewed.rank_tensor("gpus")
            total = double(new).reduce()
            assert on_all(new) == [[life + rank] * 2 for rank in range(3)]
            assert on_all(total) == [[6.0 * life + 6] * 2] * 3
            moved = new.slice_mesh(gpus=2).to_mesh(renewed)
            assert on_all(moved) == [[2.0 + life] * 2] * 3


def test_a_tensor_of_before_says_that_it_is_lost_and_where(
    renewed: ProcMesh, restarts: Restarts
) -> None:
    with renewed.activate():
        old: Any = torch.ones(2)
        weight = torch.ones(2, requires_grad=True)
        assert on_all(old + 1) == [[2.0] * 2] * 3
        pid = kill(renewed, 2, restarts)
        add = monarch.remote(lambda x: float(x.sum()))
        double = monarch.remote(lambda x: x * 2)
        lost = (
            rf"(?s)renewed\[gpus=2\] \(pid {pid}\) died: killed by SIGKILL.* was made before that "
            r"process was restarted, and has no value there: make it again"
        )
        for use in (
            lambda: old + torch.ones(2), lambda: old.add_(1), old.reduce,
            lambda: old.slice_mesh(gpus=2).to_mesh(renewed), lambda: (weight * 2).sum().backward(),
            lambda: add.call(old), lambda: double(old), lambda: monarch.fetch_shard(old, gpus=2),
            lambda: monarch.call_on_shard_and_fetch(add, old, shard={"gpus": 2}),
        ):  # fmt: skip
            with pytest.raises(RestartedError, match=lost):
                use()
        assert monarch.inspect(old).tolist() == [1.0] * 2  # the other ranks have theirs
        assert monarch.call_on_shard_and_fetch(add, old, shard={"gpus": 1}).get(timeout=60) == 2.0
        part = old.slice_mesh(gpus=slice(0, 2))
        assert on_all((part + 1).reduce()) == [[4.0] * 2] * 2
        old.drop()
        assert on_all(torch.ones(1)) == [[1.0]] * 3


def test_compiled_functions_and_functions_of_the_program_are_sent_again(
    renewed: ProcMesh, restarts: Restarts
) -> None:
    @monarch.compile
    def step(x: Any) -> Any:
        return (x * 2 + 1).reduce()

    total = monarch.remote(lambda x: float(x.sum()))
    with renewed.activate():
        for _ in range(3):
            x = torch.ones(2)
            for _ in range(3):
                assert on_all(step(x)) == [[9.0] * 2] * 3
            assert list(total.call(x).get(timeout=60).values()) == [2.0] * 3
            kill(renewed, 1, restarts)


def test_a_program_that_repeats_a_step_goes_on_after_deaths(
    renewed: ProcMesh, restarts: Restarts
) -> None:
    def step() -> Any:
        with renewed.activate():
            x = torch.ones(100) + renewed.rank_tensor("gpus")
            for _ in range(50):
                x = x + x.reduce() * 0
            return monarch.fetch_shard(x.reduce(), gpus=1).get(timeout=60)[0].item()

    for rank in (0, 2):
        assert step() == 6.0
        with renewed.activate():
            pid = monarch.remote(os.getpid).call().get(timeout=60).item(gpus=rank)
        os.kill(pid, signal.SIGKILL)  # the program is not told, and goes on
        found = None
        while found is None:
            try:
                found = step()
            except (SupervisionError, monarch.RemoteException):
                continue
        restarts.get(timeout=60)
        assert step() == 6.0


def test_a_rank_that_is_down_loses_what_is_sent_meanwhile_if_calls_are_to_raise(
    spawn_procs: Callable[..., ProcMesh], restarts: Restarts
) -> None:
    @monarch.compile
    def step(x: Any) -> Any:
        return x * 3

    policy = Restart(back_off="200ms", jitter=0, while_restarting="raise")
    procs = spawn_procs({"gpus": 2}, name="raising", preload=TORCH, restart=policy)
    with procs.activate():
        assert on_all(torch.ones(1)) == [[1.0]] * 2
        for _ in range(2):  # the second restart waits for its time
            kill(procs, 1, restarts)
            found: Any = None
            while found is None:
                try:
                    found = on_all(step(torch.ones(1) + 1).reduce())
                except RestartedError:
                    continue
            assert found == [[12.0]] * 2


def test_the_last_death_that_a_policy_allows_is_final(
    spawn_procs: Callable[..., ProcMesh], restarts: Restarts, faults: Any
) -> None:
    procs = spawn_procs({"gpus": 2}, name="few", preload=TORCH, restart=Restart(at_most=1))
    with procs.activate():
        x: Any = torch.ones(1)
        kill(procs, 1, restarts)
        pid = monarch.remote(os.getpid).call().get(timeout=60).item(gpus=1)
        y = torch.ones(1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SupervisionError):
            monarch.fetch_shard(y, gpus=1).get(timeout=60)
        assert pid in {failure.pid for failure in faults.take().failures}
        with pytest.raises(SupervisionError, match="slice_mesh"):
            y + 1
        assert monarch.inspect(x.slice_mesh(gpus=0) + 1).item() == 2.0
