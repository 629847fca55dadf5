"""Jobs: hosts that are reserved once and run many programs, one after another.

from monarch.job import ProcessJob

job = ProcessJob({"trainers": 4})          # or SSHJob({"trainers": ["h1", "h2"]})
trainers = job.state().trainers            # a HostMesh; the next program finds the same hosts
procs = trainers.spawn_procs({"gpus": 8})  # {hosts: 4, gpus: 8}
job.kill()
"""

from __future__ import annotations

import monarch.actor
from monarch._src.errors import JobError
from monarch._src.job.exec_command import exec_command
from monarch._src.job.launchers.local import LocalJob
from monarch._src.job.launchers.process import ProcessJob
from monarch._src.job.launchers.ssh.job import SSHHost, SSHJob
from monarch._src.job.paths import job_names, job_path
from monarch._src.job.trait import DEFAULT_JOB_PATH, JobState, JobTrait, job_load, job_loads

__all__ = [
    "DEFAULT_JOB_PATH",
    "JobError",
    "JobState",
    "JobTrait",
    "LocalJob",
    "ProcessJob",
    "SSHHost",
    "SSHJob",
    "exec_command",
    "job_load",
    "job_loads",
    "job_names",
    "job_path",
]

# A program that attaches to hosts is a client: it gets failures and the output of ranks.
monarch.actor._prepare()  # pyright: ignore[reportPrivateUsage]
