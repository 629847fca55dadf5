import json
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath

import pytest

from tests.packaging.building import ROOT, build, checked, names, only, run

pytestmark = pytest.mark.slow

PANEL = "share/jupyter/labextensions/monarch-jupyter"


def test_the_wheel_has_every_module_of_both_import_roots(wheel: Path) -> None:
    packed = set(names(wheel))
    for root, package in ((ROOT / "runtime", "monarch"), (ROOT, "monarch_jupyter")):
        sources = [path for path in (root / package).rglob("*") if path.is_file()]
        expected = {
            path.relative_to(root).as_posix()
            for path in sources
            if "__pycache__" not in path.parts and path.suffix != ".pyc"
        }
        assert expected
        assert expected <= packed


def test_the_wheel_has_nothing_else_at_its_top(wheel: Path) -> None:
    stem = "-".join(wheel.stem.split("-")[:2])
    tops = {PurePosixPath(name).parts[0] for name in names(wheel)}
    assert tops == {"monarch", "monarch_jupyter", f"{stem}.data", f"{stem}.dist-info"}


def test_the_wheel_has_the_panel_once_and_nothing_it_was_built_from(wheel: Path) -> None:
    packed = names(wheel)
    panel = [name for name in packed if PANEL in name]
    assert [name for name in packed if name.endswith("/static/style.js")] == [
        next(name for name in panel if name.endswith(f"{PANEL}/static/style.js"))
    ]
    assert sum(name.endswith(f"{PANEL}/install.json") for name in packed) == 1
    assert not [name for name in packed if name.endswith(".ts") or "node_modules" in name]


def test_the_wheel_has_the_settings_of_the_panel_its_server_part_and_the_tutorials(
    wheel: Path,
) -> None:
    packed = names(wheel)
    for part in (
        f"{PANEL}/schemas/monarch-jupyter/panel.json",
        "etc/jupyter/jupyter_server_config.d/monarch_jupyter.json",
        "monarch_jupyter/tutorials/01_hello_mesh.ipynb",
    ):
        assert sum(name.endswith(part) for name in packed) == 1, part


def test_the_wheel_is_for_every_python_and_platform(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_a_wheel_is_built_from_the_source_distribution_without_node(
    unpacked: Path, without_node: Mapping[str, str], wheel: Path, tmp_path: Path
) -> None:
    checked(build("wheel", tmp_path / "again", source=unpacked, env=without_node))
    again = only(tmp_path / "again", "*.whl")
    assert sorted(names(again)) == sorted(names(wheel))


def test_a_wheel_without_its_panel_is_refused(
    unpacked: Path, without_node: Mapping[str, str], tmp_path: Path
) -> None:
    shutil.rmtree(unpacked / "labextension" / "dist")
    done = build("wheel", tmp_path / "again", source=unpacked, env=without_node)
    assert done.returncode != 0
    assert "jlpm" in done.stderr
    assert not list((tmp_path / "again").glob("*.whl"))


def test_an_editable_install_without_node_says_that_the_panel_is_missing(
    unpacked: Path, without_node: Mapping[str, str], tmp_path: Path
) -> None:
    shutil.rmtree(unpacked / "labextension" / "dist")
    said = checked(build("wheel:editable", tmp_path / "again", source=unpacked, env=without_node))
    assert "side panel is not part of this installation" in said
    assert "Remedy: install node" in said
    assert not [name for name in names(only(tmp_path / "again", "*.whl")) if PANEL in name]


def test_the_panel_has_the_version_of_the_distribution(wheel: Path) -> None:
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    assert wheel.name.startswith(f"monarch_jupyter-{package['version']}-")


def test_what_is_installed_here_is_this_checkout() -> None:
    code = "import monarch, monarch_jupyter; print(monarch.__file__)"
    origins = run(sys.executable, "-c", code)
    assert checked(origins).strip().startswith(str(ROOT / "runtime" / "monarch"))
    assert (
        version("monarch-jupyter")
        == json.loads((ROOT / "labextension" / "package.json").read_text())["version"]
    )


@pytest.mark.parametrize("lock", ["constraints.txt", "labextension/yarn.lock"])
def test_a_lock_names_versions_and_no_place(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "==" in text or "version:" in text
    assert not re.search(r"://|@ ?file:|=/", text)
