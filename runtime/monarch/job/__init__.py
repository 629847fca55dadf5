"""Jobs: hosts that are reserved once and run many programs, one after another.

from monarch.job import ProcessJob

job = ProcessJob({"trainers": 4})          # or SSHJob({"trainers": ["h1", "h2"]})
trainers = job.state().trainers            # a HostMesh; the next program finds the same hosts
procs = trainers.spawn_procs({"gpus": 8})  # {hosts: 4, gpus: 8}
job.kill()
"""

from __future__ import annotations

import monarch.actor
from monarch._src.admin.side_process import MeshAdminConfig
from monarch._src.errors import JobError
from monarch._src.job.contexts import load_current_job, set_current_job
from monarch._src.job.exec_command import exec_command
from monarch._src.job.launchers.local import LocalJob
from monarch._src.job.launchers.process import ProcessJob
from monarch._src.job.launchers.slurm.job import SlurmJob
from monarch._src.job.launchers.ssh.job import SSHHost, SSHJob
from monarch._src.job.local_hosts import hosts_from_config
from monarch._src.job.open_waits import OpenWait, open_waits
from monarch._src.job.port_forward.actors import PortForwarder
from monarch._src.job.record import job_names, job_path
from monarch._src.job.service_identity import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
)
from monarch._src.job.shell.api import shell
from monarch._src.job.trait import DEFAULT_JOB_PATH, JobState, JobTrait, job_load, job_loads
from monarch._src.telemetry.history.telemetry_config import TelemetryConfig

__all__ = [
    "DEFAULT_JOB_PATH",
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "JobError",
    "JobState",
    "JobTrait",
    "LocalJob",
    "MeshAdminConfig",
    "OpenWait",
    "PortForwarder",
    "ProcessJob",
    "SSHHost",
    "SSHJob",
    "SlurmJob",
    "TelemetryConfig",
    "deserialize_service_proc_ids",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "job_names",
    "job_path",
    "load_current_job",
    "new_service_proc_id",
    "open_waits",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
    "set_current_job",
    "shell",
]

# A program that attaches to hosts is a client: it gets failures and the output of ranks.
monarch.actor._prepare()  # pyright: ignore[reportPrivateUsage]
