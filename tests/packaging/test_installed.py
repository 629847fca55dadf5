from pathlib import Path

import pytest

from tests.packaging.building import ROOT, bare_venv, build, checked, only, pip_install, run

pytestmark = pytest.mark.slow


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
