"""`%monarch spawn --job`: meshes on the hosts of a job."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from monarch.job import ProcessJob, job_path
from tests.notebook.kernel import Kernel


@pytest.fixture(scope="module")
def training() -> Iterator[str]:
    """A job of that name with 2 trainers and a loader, reserved by another program."""
    job = ProcessJob({"trainers": 2, "loaders": 1})
    job.apply()
    path = job_path("training")
    job.dump(path)
    yield str(path)
    job.kill()
    path.unlink()


def test_a_mesh_on_a_job_has_its_hosts_as_the_first_dim(kernel: Kernel, training: str) -> None:
    shown = kernel.ok("%monarch spawn workers gpus=2 --job training:trainers")
    assert shown.result["text/plain"].startswith("workers {hosts: 2, gpus: 2} on ")
    kernel.ok("%%monarch on workers\nimport os\nos.getppid()")
    assert kernel.value("len(set(_.values()))") == "2"
    kernel.ok(f"%monarch spawn one hosts=1 gpus=1 --job {training}:trainers")
    assert kernel.value("one.sizes") == "{'hosts': 1, 'gpus': 1}"
    shown = kernel.ok("%monarch ps").result["text/plain"]
    workers = [line for line in shown.splitlines() if "worker at ipc://" in line]
    assert len(workers) == 3
    assert all(": live, open to any client, worker at ipc://" in line for line in workers)
    kernel.ok("import os, tempfile; os.chdir(tempfile.mkdtemp()); os.mkdir('training')")
    kernel.ok("%monarch spawn two gpus=1 --job training:loaders")
    kernel.ok("os.rmdir('training')")
    kernel.ok("%monarch stop --all")


def test_a_mesh_on_a_job_can_be_kept_and_the_job_gives_the_hosts_that_came_with_it(
    kernel: Kernel, training: str
) -> None:
    name = f"w{secrets.token_hex(4)}"
    kernel.ok(f"%monarch spawn {name} gpus=1 --job training:trainers --keep")
    kernel.ok(f"%%monarch on {name}\nheld = 7")
    kernel.ok("%monarch detach")
    shown = kernel.ok("%monarch ps").result["text/plain"]
    assert f"`%monarch attach {name}` attaches to it; on " in shown
    assert "the session" in kernel.refused("%monarch spawn later gpus=1 --job training:trainers")
    kernel.ok(f"%monarch attach {name}")
    kernel.ok(f"%%monarch on {name}\nheld")
    assert kernel.value("list(_.values())") == "[7, 7]"
    kernel.ok("%monarch spawn later gpus=1 --job training:trainers")
    assert kernel.value("later.sizes") == "{'hosts': 2, 'gpus': 1}"
    kernel.ok("%monarch stop --all")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("gpus=1 --job nothing", "there is no job nothing (by name there is training); give"),
        ("gpus=1 --job training", "the job training has several meshes: give --job training:tr"),
        ("gpus=1 --job training:none", "the job training has no mesh none; it has trainers, loa"),
        ("hosts=3 --job training:trainers", "hosts=3: the job training has 2; leave hosts= out"),
        ("gpus=1 --job 'a b'", "the job a b cannot be used: 'a b' cannot name a job"),
    ],
)
def test_what_a_job_has_not_is_one_line_with_the_remedy(
    kernel: Kernel, training: str, given: str, says: str
) -> None:
    assert kernel.refused(f"%monarch spawn others {given}").startswith(says)
    assert kernel.value("'others' in globals()") == "False"
