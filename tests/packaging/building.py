"""Building distributions of this checkout and looking into them."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 300
OFFLINE = re.compile(r"NewConnectionError|name resolution|Network is unreachable", re.IGNORECASE)


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to the end and return what it said; the caller looks at the status."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def checked(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def build(
    target: str, folder: Path, source: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder]
    return run(*command, cwd=source, env=env)


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, f"{pattern} in {folder}: {found}"
    return found[0]


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


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
