"""What the packaging tests build, the wheel once for all of them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.packaging.building import ROOT, bare_venv, build, checked, only, pip_install, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    checked(build("wheel", folder))
    return only(folder, "*.whl")


@pytest.fixture(scope="session")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and what it depends on, and no more."""
    python = bare_venv(tmp_path_factory.mktemp("clean") / "venv")
    pip_install(python, "--constraint", ROOT / "constraints.txt", wheel)
    return python


@pytest.fixture(scope="session")
def without_node(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which no program is found, node and jlpm included."""
    return {"PATH": str(tmp_path_factory.mktemp("empty"))}


@pytest.fixture
def unpacked(tmp_path: Path, wheel: Path) -> Path:
    """The source distribution, unpacked. After the wheel, so that the panel has been built."""
    checked(build("sdist", tmp_path / "sdist"))
    # Not by tarfile: its safe way needs 3.11.4, and the other is a warning from 3.12 on.
    checked(run("tar", "xzf", only(tmp_path / "sdist", "*.tar.gz"), cwd=tmp_path))
    return only(tmp_path, "monarch_jupyter-*")
