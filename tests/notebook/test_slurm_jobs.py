"""`%monarch spawn --job` with a job of Slurm, and what a cell shows while it is queued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job import SlurmJob, job_path
from tests import slurm
from tests.notebook.kernel import Kernel
from tests.support.slurm_cluster import running_cluster

__all__ = ["running_cluster"]
pytestmark = [pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not()), pytest.mark.slow]


@pytest.fixture
def job(
    running_cluster: slurm.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmJob]:
    """A job with the name `cluster`, which waits for nodes that a `Blocker` has."""
    monkeypatch.setenv("SLURM_CONF", str(running_cluster.conf))
    found = SlurmJob({"trainers": 2}, log_dir=tmp_path / "logs", env=slurm.environment())
    found.apply()
    path = job_path("cluster")
    found.dump(path)
    yield found
    found.kill()
    path.unlink()


@pytest.fixture
def blocker(running_cluster: slurm.Cluster) -> Iterator[slurm.Blocker]:
    yield slurm.Blocker(running_cluster)
    running_cluster.cancel_all()


def prepare(kernel: Kernel, cluster: slurm.Cluster) -> None:
    """Have the kernel use that cluster, and show bars at once."""
    kernel.ok(f"import os; os.environ['SLURM_CONF'] = {str(cluster.conf)!r}")
    kernel.ok("monarch_jupyter.protocol.bars.AFTER = 0.1")


def test_a_cell_shows_what_the_job_waits_for_and_then_has_its_nodes(
    fresh_kernel: Kernel, running_cluster: slurm.Cluster, blocker: slurm.Blocker, job: SlurmJob
) -> None:
    kernel = fresh_kernel
    prepare(kernel, running_cluster)
    shown = f"Slurm job {job.slurm_job_id}: pending (Resources): 0 of 2 hosts"
    seen = False
    for message in kernel.watch("%monarch spawn workers gpus=1 --job cluster"):
        text = message["content"].get("data", {}).get("text/plain", "")
        if shown in text and not seen:
            seen = True
            blocker.end()
    assert seen
    kernel.ok("%%monarch on workers\nimport os\nos.environ['SLURMD_NODENAME']")
    assert kernel.value("list(_.values())") == "['n0', 'n1']"
    kernel.ok("%monarch stop --all")


def test_the_stop_button_ends_the_wait_and_leaves_a_job_of_another_program(
    fresh_kernel: Kernel, running_cluster: slurm.Cluster, blocker: slurm.Blocker, job: SlurmJob
) -> None:
    kernel = fresh_kernel
    prepare(kernel, running_cluster)
    pressed = False
    for message in kernel.watch("%monarch spawn workers gpus=1 --job cluster"):
        text = message["content"].get("data", {}).get("text/plain", "")
        if "pending" in text and not pressed:
            pressed = True
            kernel.manager.interrupt_kernel()
    assert pressed
    assert job.slurm_job_id in running_cluster.jobs()
    assert kernel.value("'workers' in globals()") == "False"
