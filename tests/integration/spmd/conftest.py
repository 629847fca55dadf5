"""Meshes of trainers with torch preloaded, and two workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh, attach_to_workers, shutdown_context
from tests.integration.spmd.trainers import TORCH
from tests.workers import TRUST_ALL, workers

Trainers = Callable[..., ProcMesh]


@pytest.fixture
def trainers(spawn_procs: Callable[..., ProcMesh]) -> Trainers:
    """Procs named `trainers`, of these dims."""

    def spawn(**dims: int) -> ProcMesh:
        return spawn_procs(dims, name="trainers", preload=TORCH)

    return spawn


@pytest.fixture
def two_hosts(agent_errors: object) -> Iterator[HostMesh]:
    """Two workers on this machine, which are hosts of their own to the runtime."""
    with workers(2) as found:
        yield attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in found])
        shutdown_context(reason="the workers are about to end")


def on(procs: ProcMesh, cls: type[Any]) -> Any:
    """Actors of that class on these procs, typed as any mesh of them."""
    return procs.spawn("trainer", cls)
