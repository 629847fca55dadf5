"""Meshes whose ranks use the GPUs of this machine. Without a GPU each test is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from monarch._src.rdma.cuda.gpu import why_no_gpu
from monarch.actor import ProcMesh, this_host
from tests.conftest import adopted

TORCH = ("torch", "torch.distributed")  # preloaded, so that ranks begin at once
Procs = Callable[..., ProcMesh]


def why_no_cuda() -> str:
    """Why torch cannot use a GPU here; empty if it can."""
    why = why_no_gpu()
    if why:
        return f"no GPU that could be used: {why}"
    torch = pytest.importorskip("torch")
    return "" if torch.cuda.is_available() else "this torch is built without CUDA"


def gpus() -> int:
    """How many GPUs torch sees here."""
    if why_no_cuda():
        return 0
    import torch

    return torch.cuda.device_count()


@pytest.fixture(scope="session", autouse=True)
def context_of_the_client(nothing_is_left_by_the_run: None) -> None:
    """Torch's context on the GPU, which a process keeps until it ends. Skips without a GPU."""
    why = why_no_cuda()
    if why:
        pytest.skip(why)
    with adopted(for_good=True):
        import torch

        torch.zeros(1, device="cuda")


@pytest.fixture(scope="module")
def pair(context_of_the_client: None, agent_errors: object) -> Iterator[ProcMesh]:
    """Two procs, `gpus` 0 and 1. On a machine with one GPU they share it."""
    mesh = this_host().spawn_procs({"gpus": 2}, name="pair", preload=TORCH)
    yield mesh
    mesh.stop().get(timeout=60)
