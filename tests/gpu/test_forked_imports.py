"""Ranks that were forked with torch use the GPU, which the process they come from never did."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.mesh import client_imports
from monarch.actor import Actor, endpoint, shutdown_context
from tests.gpu.conftest import Procs

torch: Any = pytest.importorskip("torch")


class Computer(Actor):
    @endpoint
    def compute(self) -> tuple[bool, float, int]:
        """Whether it was forked with torch, a product on the GPU, and the first seed there."""
        forked = "libtorch" in Path(f"/proc/{os.getppid()}/maps").read_text()
        seed = torch.cuda.initial_seed()
        product = (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum()
        return forked, product.item(), seed


@pytest.fixture
def libraries() -> Iterator[None]:
    """This process, which has a context on the GPU, has imported torch."""
    shutdown_context()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_imports, "LIBRARIES", frozenset(["torch"]))
        yield
    shutdown_context()


def test_each_rank_makes_its_own_context(libraries: None, spawn_procs: Procs) -> None:
    for _ in range(2):
        procs = spawn_procs({"gpus": 2})
        found = procs.spawn("computers", Computer).compute.call().get(timeout=300).values()
        assert found == [(True, 64.0**3, 67280421310721)] * 2
