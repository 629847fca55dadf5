"""`monarch job`: list, show and end the jobs of this user."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch._src.cli.columns import columns, duration
from monarch._src.errors import JobError
from monarch._src.job.contexts import Contexts
from monarch._src.job.record import JobRecord, job_names, job_path, read
from monarch._src.job.trait import DEFAULT_JOB_PATH
from monarch._src.mesh.meshes import HostMesh


def run_list() -> int:
    """Print the named jobs and the job of this directory; return 1 if they cannot be read."""
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
        print("you have no named jobs; job.state(job_path(NAME)) names one")
    return 0


def run_show(which: str) -> int:
    """Print the record and hosts of a job, and whether the hosts answer."""

    def show(path: Path) -> None:
        job, record = _loaded(path), read(path)
        rows = [("  record", str(path)), ("  kind", record.kind), ("  age", _age(record))]
        if job.active:
            rows += [("  id", str(job.apply_id)), ("  state", job.condition())]
        else:
            rows += [("  state", "not applied: it has no hosts yet")]
        rows += [(f"  {name}", where) for name, where in job.places()]
        print(f"job {which}")
        print("\n".join(columns(rows)))

    return _reported(which, show)


def run_kill(which: str) -> int:
    """End a job: release its hosts and delete its record."""

    def kill(path: Path) -> None:
        job = _loaded(path)
        count = len(job.places()) if job.active else 0
        job.kill()
        os.unlink(os.path.realpath(path))
        print(f"ended {which}: released {count} host{'' if count == 1 else 's'}")

    return _reported(which, kill)


def path_of(which: str) -> Path:
    """The path of the record of the job named `which`, or else `which` as a path."""
    if which in job_names():
        return job_path(which)
    return Path(which) if os.sep in which or os.path.exists(which) else job_path(which)


def hosts_of(job: str) -> HostMesh:
    """The hosts of the job `NAME` or `NAME:MESH`.

    Raises:
        ValueError: there is no such job or mesh.
        JobError, OSError, SessionError: its hosts cannot be used.
    """
    which, _, mesh = job.partition(":")
    try:
        found = _loaded(path_of(which))
    except FileNotFoundError:
        known = ", ".join(job_names()) or "none"
        raise ValueError(f"there is no job {which}; named jobs: {known}") from None
    if not found.active:
        raise ValueError(f"the job {which} has no hosts; job.state(PATH) reserves them")
    state = found.state(cached_path=None)
    names = list(state)
    if not mesh and len(names) > 1:
        raise ValueError(f"the job {which} has several meshes: give --job {which}:{names[0]}")
    return _mesh_of(state, mesh or names[0], f"the job {which}")


def chosen_hosts(job: str | None, mesh: str | None, *, here: bool, kill: bool = False) -> HostMesh:
    """The hosts that `--job`, `--mesh` and `--here` choose. `kill`: their job is to end afterwards.

    Without any of them: the first mesh of the job of the current context, or else this host.

    Raises: as `hosts_of`; ValueError also for options that exclude each other.
    """
    if here:
        if job is not None or mesh is not None:
            raise ValueError("--here is this machine: give no --job and no --mesh with it")
        if kill:
            raise ValueError("--kill ends a job: give no --here with it")
        return _this_host()
    if job is not None:
        if mesh is not None and ":" in job:
            raise ValueError(f"--job {job} names a mesh, and so does --mesh {mesh}: give one")
        return hosts_of(job if mesh is None else f"{job}:{mesh}")
    contexts = Contexts()
    name = contexts.current()
    try:
        found = _loaded(contexts.record(name))
    except FileNotFoundError:
        found = None
    if found is None or not found.active:
        if mesh is not None or kill:
            raise ValueError(f"the context {name} has no hosts; `monarch apply` reserves them")
        return _this_host()
    state = found.state(cached_path=None)
    return _mesh_of(state, mesh or next(iter(state)), f"the job of the context {name}")


def kill_chosen(job: str | None) -> None:
    """End the job that `--job` names, or that of the current context, and remove its record.

    Raises:
        JobError, OSError: it is gone already, or some hosts could not be released.
    """
    contexts = Contexts()
    path = contexts.record(contexts.current()) if job is None else path_of(job.partition(":")[0])
    _loaded(path).kill()
    os.unlink(os.path.realpath(path))


def _this_host() -> HostMesh:
    from monarch.actor import this_host

    return this_host()


def _mesh_of(state: Any, mesh: str, whose: str) -> HostMesh:
    names = list(state)
    if mesh not in names:
        raise ValueError(f"{whose} has no mesh {mesh}; it has {', '.join(names)}")
    hosts: HostMesh = state[mesh]
    return hosts


def _reported(which: str, run: Callable[[Path], None]) -> int:
    try:
        run(path_of(which))
    except FileNotFoundError:
        known = ", ".join(job_names()) or "none"
        print(f"monarch job: there is no job {which}; named jobs: {known}", file=sys.stderr)
        return 1
    except (JobError, OSError, ValueError) as error:
        print(f"monarch job: {error}", file=sys.stderr)
        return 1
    return 0


def _loaded(path: Path) -> Any:
    # The public module, as in a notebook: it also sets up where faults and output are shown.
    if os.getcwd() not in sys.path:  # a job class of a module here, as `monarch apply` has found it
        sys.path.append(os.getcwd())
    from monarch.job import job_load

    return job_load(path)


def _row(name: str, path: Path) -> tuple[str, str, str, str]:
    try:
        record = read(path)
    except (JobError, OSError) as error:
        return (name, "-", "-", str(error))
    kind = record.kind.rpartition(":")[2]
    return (name, kind, _age(record), "not applied" if record.apply_id is None else "applied")


def _age(record: JobRecord) -> str:
    return "-" if record.applied is None else duration(max(0.0, time.time() - record.applied))
