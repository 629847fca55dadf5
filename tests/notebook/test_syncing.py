"""`%monarch sync`: files of the notebook's program on the hosts of a mesh, and edits of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job import ProcessJob
from tests.notebook.kernel import Kernel

STEPS = "def factor():\n    return {}\n"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A job of two hosts, reserved by another program."""
    made = ProcessJob({"trainers": 2})
    made.apply()
    path = tmp_path_factory.mktemp("job") / "job"
    made.dump(path)
    yield str(path)
    made.kill()


@pytest.fixture
def project(kernel: Kernel, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory with a module of a name that no other test has, on the kernel's path."""
    name = f"steps_{secrets.token_hex(4)}"
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / f"{name}.py").write_text(STEPS.format(1))
    kernel.ok(f"import sys; sys.path.insert(0, {str(folder)!r})")
    yield folder, name
    kernel.ok("%monarch autoreload off")
    kernel.ok("%monarch stop --all")
    kernel.ok(f"sys.path.remove({str(folder)!r})")


def factors(kernel: Kernel, module: str) -> str:
    kernel.ok(f"%%monarch on workers\nimport {module}\n{module}.factor(), {module}.__file__")
    return kernel.value(
        "sorted({(value, 'monarch_workspace_' in file) for value, file in _.values()})"
    )


def test_ranks_import_the_copy_and_an_edit_comes_with_autoreload(
    kernel: Kernel, job: str, project: tuple[Path, str]
) -> None:
    folder, module = project
    kernel.ok(f"%monarch spawn workers gpus=2 --job {job}")
    shown = kernel.ok(f"%monarch sync workers {folder}")
    assert shown.stdout == "1 file on 2 hosts: 1 sent (27 B)\n"
    assert shown.stderr == ""
    assert factors(kernel, module) == "[(1, True)]"
    assert kernel.ok(f"%monarch sync workers {folder}").stdout == (
        "1 file on 2 hosts: nothing has changed\n"
    )
    kernel.ok("%monarch autoreload on")
    (folder / f"{module}.py").write_text(STEPS.format(22))
    assert factors(kernel, module) == "[(22, True)]"
    meshes = "[mesh.name for mesh in __import__('monarch.observe').observe.meshes()]"
    assert kernel.value(meshes) == "['workers']"


def test_a_directory_that_makes_no_sense_is_refused(
    kernel: Kernel, job: str, project: tuple[Path, str]
) -> None:
    kernel.ok(f"%monarch spawn workers gpus=1 --job {job}")
    assert "needs the name of a mesh, and a directory" in kernel.refused("%monarch sync")
    assert "nowhere is no directory" in kernel.refused("%monarch sync workers /nowhere")
    assert "~/project`" in kernel.refused("%monarch sync workers /")
    kernel.ok("%monarch spawn here gpus=1")
    assert kernel.ok(f"%monarch sync here {project[0]}").stdout == (
        "nothing to send: this host has the files\n"
    )
