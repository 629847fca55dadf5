"""Meshes with torch preloaded, on which tests make tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from monarch.actor import ProcMesh, this_host

TORCH = ("torch", "torch.distributed")  # preloaded, so that ranks begin at once


@pytest.fixture(scope="module")
def pair(agent_errors: object) -> Iterator[ProcMesh]:
    """Two procs, `gpus` 0 and 1."""
    mesh = this_host().spawn_procs({"gpus": 2}, name="pair", preload=TORCH)
    yield mesh
    mesh.stop().get(timeout=60)


@pytest.fixture(scope="module")
def square(agent_errors: object) -> Iterator[ProcMesh]:
    """Four procs, `dp` 0 and 1 by `tp` 0 and 1."""
    mesh = this_host().spawn_procs({"dp": 2, "tp": 2}, name="square", preload=TORCH)
    yield mesh
    mesh.stop().get(timeout=60)


@pytest.fixture
def faulty(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Three procs, `gpus` 0 to 2, of the test alone."""
    return spawn_procs({"gpus": 3}, name="faulty", preload=TORCH)
