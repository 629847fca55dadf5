"""Meshes that the tests of one module share, and gates at which ranks wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import ProcMesh, this_host
from tests.integration.gates import GateKeeper, gate_in


@pytest.fixture(scope="module")
def four(agent_errors: object) -> Iterator[ProcMesh]:
    """Four procs, `gpus` 0 to 3."""
    mesh = this_host().spawn_procs({"gpus": 4}, name="workers")
    yield mesh
    mesh.stop().get(timeout=60)


@pytest.fixture(scope="module")
def grid(agent_errors: object) -> Iterator[ProcMesh]:
    """Six procs, `hosts` 0 and 1 by `gpus` 0 to 2."""
    mesh = this_host().spawn_procs({"hosts": 2, "gpus": 3}, name="grid")
    yield mesh
    mesh.stop().get(timeout=60)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[GateKeeper]:
    """A gate that ranks can be held at."""
    with gate_in(tmp_path) as keeper:
        yield keeper
