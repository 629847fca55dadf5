"""Fixtures of the telemetry tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch.actor import ProcMesh


@pytest.fixture
def mesh(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Two procs, `gpus` 0 and 1."""
    procs = spawn_procs({"gpus": 2}, name="workers")
    procs.initialized.get()
    return procs
