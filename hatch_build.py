"""Builds the labextension into the wheel.

hatch-jupyter-builder calls `build_labextension`; the custom hook then adds what was built to the
wheel's shared data. Two cases decide the form: a source distribution carries the built files, so
installing from it needs no node; and an editable install without node gets the Python side only,
with a warning that says what is missing.
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SOURCE = ROOT / "labextension"
BUILT = SOURCE / "dist"
WIDGETS = ROOT / "monarch_jupyter" / "widgets" / "js"  # the panel shows what cells show
SHARED = "share/jupyter/labextensions/monarch-jupyter"
# Has the server load its part of the panel.
SERVER = SOURCE / "server" / "monarch_jupyter.json"
SERVER_SHARED = "etc/jupyter/jupyter_server_config.d/monarch_jupyter.json"


def _inputs() -> list[Path]:
    found = [path for part in ("src", "style", "schema") for path in (SOURCE / part).rglob("*")]
    found += [*WIDGETS.glob("*.js"), *WIDGETS.glob("*.css")]
    found += [SOURCE / name for name in ("package.json", "tsconfig.json", "yarn.lock")]
    return [path for path in found if path.is_file()]


def is_current() -> bool:
    """Whether the built files are there and newer than all they were built from."""
    marker = BUILT / "package.json"
    if not marker.exists():
        return False
    return marker.stat().st_mtime >= max(path.stat().st_mtime for path in _inputs())


def build_labextension(target_name: str, version: str, **_: Any) -> None:
    """Build function of hatch-jupyter-builder: `version` is "standard" or "editable"."""
    from hatch_jupyter_builder import npm_builder  # only there when a build runs

    if not is_current():
        # jlpm is installed beside the Python that builds, which need not be on PATH.
        beside = str(Path(sys.executable).parent)
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), beside])
        npm_builder(target_name, version, path=str(SOURCE), build_cmd="build:prod", npm=["jlpm"])
        (BUILT / "package.json").touch()


class SharedLabextension(BuildHookInterface):
    """Adds the built labextension to the wheel, once, as shared data."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        skipped = bool(os.environ.get("SKIP_JUPYTER_BUILDER"))
        if self.target_name != "wheel":
            return
        build_data["shared_data"][str(SERVER)] = SERVER_SHARED
        if version == "editable" and skipped:
            return  # `make` links the built files by itself
        if (BUILT / "package.json").exists():
            build_data["shared_data"][str(BUILT)] = SHARED
        elif version == "editable" or skipped:
            self.app.display_warning(
                "The JupyterLab side panel is not part of this installation: it was not built. "
                "Everything in the notebook works. Remedy: install node, then install again."
            )
        else:
            raise FileNotFoundError(f"{BUILT}: the labextension was not built")
