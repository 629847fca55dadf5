"""SPMDJob: hosts that are reserved once, and a torchrun command that runs on them many times.

Runs in: clients. Owns: the job that has the hosts, of which the record of this one has a copy.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, cast

from msgspec.structs import replace

from monarch._src.job import record
from monarch._src.job.launchers.process import ProcessJob
from monarch._src.job.launchers.slurm.job import SlurmJob
from monarch._src.job.launchers.ssh.job import SSHJob
from monarch._src.job.trait import DEFAULT_JOB_PATH, JobState, JobTrait
from monarch._src.mesh.meshes import HostMesh
from monarch._src.spmd.torchrun import run
from monarch._src.spmd.torchrun_arguments import Launch, parse_arguments

MESH = "workers"
_LOCAL = ("local_cwd", "local", "process")
_SCHEDULERS = "'local_cwd' (processes of this host), 'ssh', 'slurm', or a job of monarch.job"
_SHELLS = ("bash", "sh")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


class SPMDJob(JobTrait):
    """A torchrun command, and the hosts that it runs on. See `serve`."""

    not_dumped = frozenset({"_hosts"})
    _command: list[str]
    _env: dict[str, str]
    _kind: str  # of the job that has the hosts, and its attributes, as in a record of its own
    _values: dict[str, Any]
    _hosts: JobTrait

    def __init__(
        self, command: Sequence[str], hosts: JobTrait, env: Mapping[str, str] | None = None
    ) -> None:
        """Args:
        command: a torchrun command, as `serve` takes it.
        hosts: a job with the hosts, not applied yet. The command runs on its mesh `workers`, or
            else on its first one.
        env: added to the environment of the ranks.

        Raises:
            ValueError: the command does not begin with torchrun.
            TypeError: the command is no list of text.
        """
        super().__init__()
        self._command = torchrun_words(command)
        self._env = dict(env or {})
        self._hosts = hosts
        self._kind = record.kind_of(hosts)
        self._note()

    def run_spmd(self) -> None:
        """Run the command on the hosts, on fresh processes. Returns when all ranks have ended it.

        Reserves the hosts if that was not done yet. Raises as `monarch.spmd.torchrun` does, and
        JobError if hosts could not be reserved, or are gone.
        """
        launch = self._launch()
        state = self.state(cached_path=None)
        names = list(state)
        hosts: HostMesh = state[MESH if MESH in names else names[0]]
        run(launch, hosts)

    def _launch(self) -> Launch:
        found = parse_arguments(self._command, prog="torchrun")
        return replace(found, env={**found.env, **self._env})

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, SPMDJob) and self._inner().can_run(spec._inner())

    def _on_taken_up(self, path: Path) -> None:
        # The record gets the present command: the hosts may have been reserved for another one.
        running = self._running_job()
        running._command, running._env = self._command, self._env
        running.dump(path)

    def places(self) -> list[tuple[str, str]]:
        running = self._running_job()
        return running._inner().places()

    def _create(self, client_script: str | None) -> None:
        self._inner()._create(client_script)
        self._note()

    def _state(self) -> JobState:
        inner = self._inner()
        inner._apply_id = self._apply_id  # its attached hosts are found by this
        return inner._state()

    def _is_given_up(self) -> bool:
        return self._inner()._is_given_up()

    def _kill(self) -> None:
        try:
            self._inner()._kill()
        finally:
            self._note()

    def _inner(self) -> JobTrait:
        """The job that has the hosts; of a record, made from its values."""
        found: JobTrait | None = vars(self).get("_hosts")
        if found is None:
            where = "the record"
            kind = record.class_of(self._kind, JobTrait, where)
            found = object.__new__(kind)
            JobTrait.__init__(found)
            leave_out = kind._OWN | kind.not_dumped
            vars(found).update(record.restored(kind, self._values, leave_out, where))
            self._hosts = found
        return found

    def _note(self) -> None:
        """Copy the attributes of the job that has the hosts."""
        hosts = self._inner()
        self._values = record.values_of(hosts, hosts._OWN | hosts.not_dumped)


def serve(
    appdef: Any,
    scheduler: str | JobTrait = "local_cwd",
    scheduler_cfg: Mapping[str, Any] | None = None,
    *,
    cached_path: str | os.PathLike[str] | None = DEFAULT_JOB_PATH,
) -> SPMDJob:
    """Reserve hosts for a torchrun command. `run_spmd` of the result runs it, again and again.

    The job has a record, by which a later program finds it: `job_load(".monarch/job_state.pkl")`
    runs the same command on the same hosts. As with `state` of any job, hosts of a record there are
    taken up if they fit; otherwise that job is ended, with a warning.

    Args:
        appdef: a command, as in `["torchrun", "--nproc-per-node", "4", "train.py"]`, or an object
            with the shape of a TorchX AppDef: one role with `entrypoint`, `args`, `env` and
            `num_replicas`.
        scheduler: `"local_cwd"`: processes of this host, one for each node; `"ssh"`: the hosts
            that `scheduler_cfg` names; `"slurm"`: a node of Slurm for each node; or a job of
            `monarch.job` that is not applied yet.
        scheduler_cfg: the arguments of `SSHJob` for ssh, as in `{"hosts": ["h1", "h2"]}`; those of
            `SlurmJob` but `meshes` for slurm, as in `{"partition": "gpu"}`; `env` for local_cwd.
        cached_path: the path of the record; None: no record, and hosts for this object alone.

    Raises:
        ValueError: no torchrun command, no such scheduler, or hosts that do not fit the nodes.
        TypeError: an argument of the wrong type.
        ModuleNotFoundError: torch is not installed here.
        JobError: the hosts could not be reserved. OSError: the record cannot be written.
    """
    command, env, replicas = _command_of(appdef)
    launch = parse_arguments(torchrun_words(command), prog="torchrun")
    nodes = launch.nodes or replicas
    job = SPMDJob(command, _hosts_job(scheduler, dict(scheduler_cfg or {}), nodes), env)
    if cached_path is None:
        job.apply()
    else:
        job.reserve(cached_path)
    return job


def torchrun_words(command: Sequence[str]) -> list[str]:
    """The words after torchrun.

    Raises:
        ValueError: it is no torchrun command.
        TypeError: it is no list of text.
    """
    if isinstance(command, str):
        raise TypeError(f"the command is a list of words, such as {shlex.split(command)!r}")
    words = list(command)
    if not all(isinstance(word, str) for word in words):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the command is a list of text, not {words!r}")
    if len(words) == 3 and PurePath(words[0]).name in _SHELLS and words[1] == "-c":
        words = shlex.split(words[2])  # as TorchX's dist.ddp has it
    if words and PurePath(words[0]).name == "torchrun":
        return words[1:]
    if words[1:2] == ["-m"] and words[2:3] and words[2] in _MODULES:
        return words[3:]
    raise ValueError(
        f"{shlex.join(words)!r} is no torchrun command; begin it with 'torchrun', as in "
        "['torchrun', '--nproc-per-node', '4', 'train.py']"
    )


def _command_of(appdef: Any) -> tuple[Sequence[str], dict[str, str], int]:
    """The command of an AppDef or of a list, its environment, and how many replicas it asks for."""
    if isinstance(appdef, str) or not hasattr(appdef, "roles"):
        if isinstance(appdef, (str, list, tuple)):
            return cast("Sequence[str]", appdef), {}, 1
        raise TypeError(
            f"serve takes a list of words or an AppDef, not {type(appdef).__name__}; an AppDef has "
            "`roles`"
        )
    roles = list(appdef.roles)
    if len(roles) != 1:
        raise ValueError(f"the AppDef has {len(roles)} roles; serve runs one")
    role = roles[0]
    words = [str(role.entrypoint), *map(str, role.args)]
    env = {str(name): str(value) for name, value in dict(role.env or {}).items()}
    return words, env, int(getattr(role, "num_replicas", 1) or 1)


def _hosts_job(scheduler: str | JobTrait, cfg: dict[str, Any], nodes: int) -> JobTrait:
    """A job with as many hosts, not applied."""
    if isinstance(scheduler, JobTrait):
        if cfg:
            raise ValueError("scheduler_cfg goes with a scheduler's name; configure the job itself")
        if scheduler.active:
            raise ValueError(f"{scheduler!r} has hosts already; give a job that is not applied")
        return scheduler
    if scheduler in _LOCAL:
        env = cfg.pop("env", None)
        _check_empty(cfg, scheduler, "env")
        return ProcessJob({MESH: nodes}, env=env)
    if scheduler == "slurm":
        return SlurmJob({MESH: nodes}, **cfg)
    if scheduler == "ssh":
        hosts = cfg.pop("hosts", None)
        if isinstance(hosts, str) or not isinstance(hosts, Sequence):
            raise ValueError("scheduler 'ssh' needs scheduler_cfg={'hosts': ['h1', 'h2']}")
        found: list[Any] = list(hosts)  # pyright: ignore[reportUnknownArgumentType]
        if len(found) < nodes:
            raise ValueError(f"the command asks for {nodes} nodes, and hosts has {len(found)}")
        return SSHJob({MESH: found}, **cfg)
    raise ValueError(f"there is no scheduler {scheduler!r} here; give {_SCHEDULERS}")


def _check_empty(cfg: Mapping[str, Any], scheduler: str, known: str) -> None:
    if cfg:
        names = ", ".join(cfg)
        raise ValueError(f"scheduler_cfg of {scheduler!r} has {names}; it takes {known}")
