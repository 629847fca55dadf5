"""A job on the caller's own host: it reserves nothing, and stands in for a larger job.

Runs in: clients. Owns: the client script that `apply` was given, which outlives this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from monarch._src.errors import JobError
from monarch._src.job.trait import DEFAULT_JOB_PATH, JobState, JobTrait, check_names
from monarch._src.mesh.meshes import this_host

LOGS = Path(DEFAULT_JOB_PATH).parent / "logs"


class LocalJob(JobTrait):
    """A job whose meshes are all `this_host()`."""

    not_dumped = frozenset({"_process"})
    _host_names: list[str]
    _log_directory: str | None
    _process: subprocess.Popen[bytes] | None = None  # of this object; a loaded one has none

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        """Args:
        hosts: the names of its meshes.

        Raises:
            ValueError: there are none, or one is not a Python identifier. TypeError: a single text.
        """
        super().__init__()
        if isinstance(hosts, str):
            raise TypeError(f"hosts={hosts!r}: give a list, as in LocalJob([{hosts!r}])")
        check_names(dict.fromkeys(hosts), "a LocalJob")
        self._host_names = list(hosts)
        self._log_directory = None

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, LocalJob) and spec._host_names == self._host_names

    def places(self) -> list[tuple[str, str]]:
        return [(name, "this host") for name in self._host_names]

    def _state(self) -> JobState:
        return JobState({name: this_host() for name in self._host_names})

    def _create(self, client_script: str | None) -> None:
        """Run the script detached from this program, with its output in `log_directory`."""
        if client_script is None:
            return
        if not os.path.isfile(client_script):
            raise JobError(f"there is no script {client_script}")
        LOGS.mkdir(parents=True, exist_ok=True)
        self._log_directory = os.path.abspath(tempfile.mkdtemp(prefix="job_", dir=LOGS))
        logs = Path(self._log_directory)
        with open(logs / "stdout.log", "wb") as out, open(logs / "stderr.log", "wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, client_script],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def log_directory(self) -> str | None:
        """The directory of the script's `stdout.log` and `stderr.log`; None without a script."""
        return self._log_directory

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the script.

        Raises:
            ValueError: this object has started none.
        """
        if self._process is None:
            raise ValueError("no script was started: apply(client_script=...) starts one")
        return self._process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait()
