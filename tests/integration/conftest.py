"""Meshes that the tests of one module share, workers, and gates at which ranks wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import ProcMesh, shutdown_context, this_host
from tests.integration.admin_server import AdminProcess, admin_server
from tests.integration.gates import GateKeeper, gate_in
from tests.workers import Worker, worker


@pytest.fixture(scope="module")
def four(agent_errors: object) -> Iterator[ProcMesh]:
    """Four procs, `gpus` 0 to 3."""
    mesh = this_host().spawn_procs({"gpus": 4}, name="workers")
    yield mesh
    mesh.stop().get(timeout=60)


@pytest.fixture(scope="module")
def tcp_admin(four: ProcMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    """An admin server of the session of `four`, at a port of loopback."""
    four.initialized.get()
    with admin_server(tmp_path_factory.mktemp("tcp"), "--listen", "127.0.0.1:0") as found:
        yield found


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


@pytest.fixture
def guarded(job: str, tmp_path: Path) -> Iterator[Worker]:
    """A worker of that job, which writes its audit log to `audit` in the test's folder."""
    audit = str(tmp_path / "audit")
    with worker("--address", "tcp://127.0.0.1:0", "--keys", job, "--audit", audit) as found:
        yield found
        shutdown_context(reason="the worker is about to end")
