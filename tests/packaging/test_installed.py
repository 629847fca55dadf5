import re
import sys
from pathlib import Path

import pytest

from tests.packaging.building import ROOT, build, checked, only, run

pytestmark = pytest.mark.slow

OFFLINE = re.compile(r"NewConnectionError|name resolution|Network is unreachable", re.IGNORECASE)


def bare_venv(folder: Path) -> Path:
    """The interpreter of an environment in which nothing is installed, pip included."""
    checked(run(sys.executable, "-m", "venv", "--without-pip", folder))
    return folder / "bin" / "python"


def pip_install(python: Path, *arguments: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    done = run(*pip, "install", "--quiet", *arguments)
    if done.returncode != 0 and OFFLINE.search(done.stderr):
        pytest.skip("no package registry can be reached")
    checked(done)


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and what it depends on, and no more."""
    python = bare_venv(tmp_path_factory.mktemp("clean") / "venv")
    pip_install(python, "--constraint", ROOT / "constraints.txt", wheel)
    return python


def test_the_wheel_alone_brings_what_both_import_roots_need(clean: Path, tmp_path: Path) -> None:
    code = "import monarch.actor, monarch.observe, monarch_jupyter; print(monarch.__file__)"
    assert "site-packages" in checked(run(clean, "-W", "error", "-c", code, cwd=tmp_path))


def test_actors_are_imported_without_anything_heavy(clean: Path, tmp_path: Path) -> None:
    heavy = "{'torch', 'numpy', 'IPython', 'ipykernel', 'ipywidgets', 'tornado'}"
    code = f"import sys, monarch.actor; print(sorted({heavy} & set(sys.modules)))"
    assert checked(run(clean, "-c", code, cwd=tmp_path)).strip() == "[]"


def test_the_wheel_does_not_bring_torch(clean: Path, tmp_path: Path) -> None:
    code = "import importlib.util; print(importlib.util.find_spec('torch'))"
    assert checked(run(clean, "-c", code, cwd=tmp_path)).strip() == "None"


def test_the_command_lists_its_subcommands(clean: Path, tmp_path: Path) -> None:
    assert "doctor" in checked(run(clean.parent / "monarch", "--help", cwd=tmp_path))


def test_jupyterlab_finds_the_panel_where_the_wheel_puts_it(clean: Path) -> None:
    panel = clean.parents[1] / "share/jupyter/labextensions/monarch-jupyter"
    assert (panel / "package.json").is_file()
    assert list((panel / "static").glob("remoteEntry.*.js"))


def test_an_editable_install_finds_both_import_roots_in_the_checkout(tmp_path: Path) -> None:
    checked(build("wheel:editable", tmp_path, env={"SKIP_JUPYTER_BUILDER": "1"}))
    python = bare_venv(tmp_path / "venv")
    pip_install(python, "--no-deps", "--no-index", only(tmp_path, "*.whl"))
    code = (
        "from importlib.util import find_spec as find\n"
        "print(find('monarch').origin, find('monarch_jupyter').origin, sep='\\n')"
    )
    origins = checked(run(python, "-c", code, cwd=tmp_path)).split()
    assert origins == [
        str(ROOT / "runtime" / "monarch" / "__init__.py"),
        str(ROOT / "monarch_jupyter" / "__init__.py"),
    ]
