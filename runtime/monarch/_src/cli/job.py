"""`monarch job`: the jobs that this user has, what each of them is, and their end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from monarch._src.cli.columns import columns, duration
from monarch._src.errors import JobError
from monarch._src.job.paths import job_names, job_path
from monarch._src.job.record import JobRecord, read
from monarch._src.job.trait import DEFAULT_JOB_PATH


def run_list() -> int:
    """Print the jobs that have a name, and the one of this directory; 0 if they can be read."""
    try:
        found = {name: job_path(name) for name in job_names()}
    except OSError as error:
        print(f"monarch job: {error}", file=sys.stderr)
        return 1
    if os.path.exists(DEFAULT_JOB_PATH):
        found[DEFAULT_JOB_PATH] = Path(DEFAULT_JOB_PATH)
    rows = [_row(name, path) for name, path in found.items()]
    if rows:
        print("\n".join(columns([("JOB", "KIND", "AGE", "STATE"), *rows])))
    else:
        print("no jobs of yours; job.state(job_path(NAME)) gives one a name")
    return 0


def run_show(which: str) -> int:
    """Print what that job is, and whether its hosts answer."""

    def show(path: Path) -> None:
        job, said = _loaded(path), read(path)
        rows = [("  record", str(path)), ("  kind", said.kind), ("  age", _age(said))]
        if job.active:
            answers = "all hosts answer" if job.can_run(job) else "hosts are lost, or do not answer"
            rows += [("  id", str(job.apply_id)), ("  state", answers)]
        else:
            rows += [("  state", "not applied: it has no hosts")]
        rows += [(f"  {name}", where) for name, where in job.places()]
        print(f"job {which}")
        print("\n".join(columns(rows)))

    return _reported(which, show)


def run_kill(which: str) -> int:
    """End that job: its hosts are given back, and its record goes."""

    def kill(path: Path) -> None:
        job = _loaded(path)
        count = len(job.places()) if job.active else 0
        job.kill()
        os.unlink(os.path.realpath(path))
        print(f"ended {which}: " + ("1 host is" if count == 1 else f"{count} hosts are") + " free")

    return _reported(which, kill)


def path_of(which: str) -> Path:
    """The record that is meant: of the job of that name if there is one, or else at that path."""
    if which in job_names():
        return job_path(which)
    return Path(which) if os.sep in which or os.path.exists(which) else job_path(which)


def _reported(which: str, run: Callable[[Path], None]) -> int:
    try:
        run(path_of(which))
    except FileNotFoundError:
        there = ", ".join(job_names()) or "none that has a name"
        print(f"monarch job: there is no job {which}; there is {there}", file=sys.stderr)
        return 1
    except (JobError, OSError, ValueError) as error:
        print(f"monarch job: {error}", file=sys.stderr)
        return 1
    return 0


def _loaded(path: Path) -> Any:
    # By the door that users take, above this layer: what a job ends is told as to any client.
    door: Any = import_module("monarch.job")
    return door.job_load(path)


def _row(name: str, path: Path) -> tuple[str, str, str, str]:
    try:
        said = read(path)
    except (JobError, OSError) as error:
        return (name, "-", "-", str(error))
    kind = said.kind.rpartition(":")[2]
    return (name, kind, _age(said), "not applied" if said.apply_id is None else "applied")


def _age(said: JobRecord) -> str:
    return "-" if said.applied is None else duration(max(0.0, time.time() - said.applied))
