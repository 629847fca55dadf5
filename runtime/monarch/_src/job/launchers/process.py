"""A job whose hosts are processes of this machine: many hosts for trials and tests.

Runs in: clients. Owns: the workers, which outlive this process, and a directory with their sockets
and logs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from monarch._src.config import settings
from monarch._src.errors import JobError
from monarch._src.job.health_check import PART_OF_LIVENESS, silent
from monarch._src.job.launchers import local_workers as workers
from monarch._src.job.launchers.local_workers import WorkerRecord
from monarch._src.job.trait import JobState, JobTrait, check_names, checked_env
from monarch._src.net import session_directory as sessions
from monarch._src.net.state.access import TRUST_ALL
from monarch._src.net.state.addresses import parse_address
from monarch._src.session.workers.options import WorkerOptions


class ProcessJob(JobTrait):
    """A job with a number of workers for each mesh, each a process of this machine.

    They listen on sockets in a directory that only this user can enter, so there are no keys.
    """

    _meshes: dict[str, int]
    _env: dict[str, str]
    _workers: list[WorkerRecord]
    _directory: str | None
    _host: str

    def __init__(self, meshes: Mapping[str, int], env: Mapping[str, str] | None = None) -> None:
        """Args:
        meshes: the number of hosts of each mesh, as in `{"trainers": 4}`.
        env: added to the environment of the workers, and so of their procs.

        Raises:
            ValueError: there is no mesh, a name is not a Python identifier, or a number is below 1.
            TypeError: `meshes` or `env` is not a dict, or `env` has an item that is not text.
        """
        super().__init__()
        check_names(meshes, "a ProcessJob")
        for name, count in meshes.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"{name} has {count!r} hosts; a mesh has 1 or more")
        self._meshes = dict(meshes)
        self._env = checked_env(env)
        self._workers = []
        self._directory = None
        self._host = os.uname().nodename

    @property
    def pids(self) -> list[int]:
        """The pids of its workers, mesh by mesh; empty before it is applied."""
        return [one.pid for one in self._running_job()._workers]

    def places(self) -> list[tuple[str, str]]:
        workers = self._running_job()._workers
        return [(f"{one.mesh}[{one.index}]", f"process {one.pid}") for one in workers]

    def can_run(self, spec: JobTrait) -> bool:
        self._check_host()
        return (
            isinstance(spec, ProcessJob)
            and (spec._meshes, spec._env) == (self._meshes, self._env)
            and not workers.gone(self._workers)
            and not silent(
                [parse_address(one.address) for one in self._workers], None,
                settings().liveness / PART_OF_LIVENESS,
            )
        )  # fmt: skip

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise JobError("a ProcessJob runs no script as its client; run it yourself")
        self._directory = tempfile.mkdtemp(
            prefix=workers.PREFIX, dir=sessions.base_directory(logs=True)
        )
        try:
            with contextlib.ExitStack() as opened:
                begun = [
                    self._start(name, index, opened)
                    for name, count in self._meshes.items()
                    for index in range(count)
                ]
                for worker, starting in zip(self._workers, begun, strict=True):
                    report = starting.wait()
                    if report.problem:
                        raise JobError(
                            f"the worker {worker.mesh}[{worker.index}] did not start: "
                            f"{report.problem}"
                        )
        except BaseException:
            self._kill()
            raise

    def _start(self, name: str, index: int, opened: contextlib.ExitStack) -> workers.Starting:
        assert self._directory is not None
        address = f"ipc://{self._directory}/{len(self._workers)}"
        log = Path(self._directory, f"{name}-{index}.log")
        starting = workers.Starting(WorkerOptions(address, TRUST_ALL), log, self._env)
        opened.callback(starting.close)
        self._workers.append(starting.record(name, index, address))
        return starting

    def _check_host(self) -> None:
        """Raise JobError on another host than the job's, where its pids mean other processes."""
        here = os.uname().nodename
        if here != self._host:
            raise JobError(
                f"this is a ProcessJob of the host {self._host}, and this host is {here}: use it "
                "there, or keep the record of another job at another path"
            )

    def _state(self) -> JobState:
        self._check_host()
        lost = workers.gone(self._workers)
        if lost:
            raise JobError(
                f"{len(lost)} of {len(self._workers)} hosts of the job are gone: "
                + ", ".join(f"{one.mesh}[{one.index}] (pid {one.pid})" for one in lost)
                + "; kill() the job, and apply it again"
            )
        return self._attached_to(TRUST_ALL, {
            name: [one.address for one in self._workers if one.mesh == name]
            for name in self._meshes
        })  # fmt: skip

    def _kill(self) -> None:
        self._check_host()
        workers.end(self._workers)
        self._workers = []
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
