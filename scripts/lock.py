"""Write constraints.txt: what `make demo`, `test` and `docs` install. Needs Python 3.11 or newer.

pip resolves for Python 3.11.0 whatever Python runs this, because some packages ask for a later
patch release than the one a distribution ships (Debian 12 has 3.11.2). The file has versions only,
no index, path or build tag, so it serves on every machine.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomllib  # pyright: ignore[reportMissingImports]

OLDEST = "3.11.0"
EXTRAS = ("test", "lab", "debug", "docs")
# The one version of torch that everything is tested with; `editables` is for editable installs.
ALSO = ("torch==2.13.0", "editables")
HEADER = (
    "# What `make demo`, `test` and `docs` install. Written by `make lock`; change pyproject.toml."
)


def wanted(extras: dict[str, list[str]], name: str) -> Iterator[str]:
    """The requirements of an extra, those of this distribution's other extras spelled out."""
    for requirement in extras[name]:
        own = re.fullmatch(r"monarch-jupyter\[(.+)\]", requirement)
        if own is None:
            yield requirement
        else:
            for part in own[1].split(","):
                yield from wanted(extras, part)


def requirements(pyproject: dict[str, Any]) -> list[str]:
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    return [
        *pyproject["build-system"]["requires"],
        *project["dependencies"],
        *(line for name in EXTRAS for line in wanted(extras, name)),
        *ALSO,
    ]


def resolve(lines: list[str]) -> list[str]:
    """`name==version` of all that pip would install, without their local build tags."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        dry = ["--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)]
        oldest = ["--python-version", OLDEST, "--only-binary", ":all:"]
        subprocess.run([*pip, *dry, *oldest, *lines], check=True)
        found = json.loads(report.read_text())["install"]
    pairs = ((item["metadata"]["name"], item["metadata"]["version"]) for item in found)
    return sorted((f"{name}=={version.split('+')[0]}" for name, version in pairs), key=str.lower)


def main() -> None:
    pins = resolve(requirements(tomllib.loads(Path("pyproject.toml").read_text())))
    Path("constraints.txt").write_text("\n".join([HEADER, *pins]) + "\n")
    print(f"constraints.txt: {len(pins)} packages")


if __name__ == "__main__":
    main()
