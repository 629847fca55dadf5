"""torch, numpy and scipy in ranks that were forked with them work as in ranks that import them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.mesh import client_imports
from monarch.actor import Actor, ProcMesh, endpoint, shutdown_context
from tests.leaks import PATIENCE_S

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

Spawn = Callable[..., ProcMesh]
LONG_S = 12 * PATIENCE_S


class Runner(Actor):
    @endpoint
    def was_forked_with_torch(self) -> bool:
        return "libtorch" in Path(f"/proc/{os.getppid()}/maps").read_text()

    @endpoint
    def run(self, function: Callable[[], Any]) -> Any:
        return function()


@pytest.fixture(scope="module")
def libraries() -> Iterator[None]:
    """The client has imported these, in a session of its own."""
    shutdown_context()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_imports, "LIBRARIES", frozenset(["torch", "numpy"]))
        yield
    shutdown_context()


@pytest.fixture
def ranks(libraries: None, spawn_procs: Spawn) -> Runner:
    runners = spawn_procs({"gpus": 4}).spawn("runners", Runner)
    assert runners.was_forked_with_torch.call().get(timeout=LONG_S).values() == [True] * 4
    return runners


def on_all(ranks: Runner, function: Callable[[], Any]) -> list[Any]:
    return ranks.run.call(function).get(timeout=LONG_S).values()


def freshly_imported(code: str) -> str:
    """What that code prints in a process of its own, with the variables that ranks have."""
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def test_generators_begin_at_random_as_after_an_import(ranks: Runner) -> None:
    def seeds() -> tuple[int, float, float]:
        # The global generator of numpy is the matter here.
        return torch.initial_seed(), float(torch.rand(1)), float(np.random.random())

    for drawn in zip(*on_all(ranks, seeds), strict=True):
        assert len(set(drawn)) == 4


def test_thread_counts_are_those_of_an_import(ranks: Runner) -> None:
    code = "import torch; print((torch.get_num_threads(), torch.get_num_interop_threads()))"

    def counts() -> tuple[int, int]:
        return torch.get_num_threads(), torch.get_num_interop_threads()

    assert {str(found) for found in on_all(ranks, counts)} == {freshly_imported(code)}


def test_pools_of_threads_work_after_the_fork(ranks: Runner) -> None:
    def work() -> tuple[float, float, float]:
        torch.set_num_threads(2)
        large = torch.ones(256, 256, requires_grad=True)
        product = (large @ large).sum()
        product.backward()  # autograd has threads of its own
        grown = np.ones((256, 256)) @ np.ones((256, 256))  # OpenBLAS too
        return float(product.detach()), float(large.grad.sum()), float(grown.sum())

    assert on_all(ranks, work) == [(256.0**3, 2 * 256.0**3, 256.0**3)] * 4


def test_loaders_and_optimizers_work_after_the_fork(ranks: Runner) -> None:
    def train() -> list[float]:
        from torch.utils.data import DataLoader, TensorDataset

        data = TensorDataset(torch.arange(12.0).reshape(12, 1))
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        totals: list[float] = []
        for (batch,) in DataLoader(data, batch_size=4, num_workers=1):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            totals.append(float(batch.sum()))
        return totals

    assert on_all(ranks, train) == [[6.0, 22.0, 38.0]] * 4


def test_a_variable_that_openmp_reads_has_the_value_of_the_mesh(
    libraries: None, ranks: Runner, spawn_procs: Spawn
) -> None:
    runners = spawn_procs({"gpus": 2}, env={"OMP_NUM_THREADS": "2"}).spawn("runners", Runner)
    assert runners.was_forked_with_torch.call().get(timeout=LONG_S).values() == [False] * 2
    assert on_all(runners, lambda: torch.get_num_threads()) == [2, 2]  # noqa: PLW0108


def test_each_rank_sees_its_own_devices(libraries: None, ranks: Runner, spawn_procs: Spawn) -> None:
    env = lambda point: {"CUDA_VISIBLE_DEVICES": str(point.rank)}  # noqa: E731
    runners = spawn_procs({"gpus": 2}, env=env).spawn("runners", Runner)
    assert runners.was_forked_with_torch.call().get(timeout=LONG_S).values() == [True] * 2
    assert on_all(runners, lambda: os.environ["CUDA_VISIBLE_DEVICES"]) == ["0", "1"]
    assert on_all(runners, lambda: torch.cuda.is_initialized()) == [False] * 2  # noqa: PLW0108
