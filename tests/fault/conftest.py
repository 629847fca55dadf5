"""Gates at which ranks wait to be killed, and meshes whose ranks are started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.actor import ProcMesh
from tests.fault.restarted_actors import OFTEN
from tests.integration.gates import GateKeeper, gate_in


@pytest.fixture
def renewed(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Three procs that are started again."""
    return spawn_procs({"gpus": 3}, name="mesh", restart=OFTEN)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[GateKeeper]:
    """A gate that ranks can be held at."""
    with gate_in(tmp_path) as keeper:
        yield keeper
