"""SPMDJob: hosts that are reserved once, and torchrun commands that run on them many times.

Runs in: clients. Owns: the job that has the hosts, of which the record of this one has a copy.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, cast

from msgspec.structs import replace

from monarch._src.errors import JobError, SupervisionError
from monarch._src.job import record
from monarch._src.job.launchers.process import ProcessJob
from monarch._src.job.launchers.slurm.job import SlurmJob
from monarch._src.job.launchers.ssh.job import SSHJob
from monarch._src.job.role_runs import run_roles
from monarch._src.job.state.roles import Role, RoleRequest, common_resource, requests_of
from monarch._src.job.trait import DEFAULT_JOB_PATH, JobState, JobTrait
from monarch._src.spmd.torchrun import run
from monarch._src.spmd.torchrun_arguments import Launch, parse_arguments

MESH = "workers"
_LOCAL = ("local_cwd", "local", "process")
_SCHEDULERS = "'local_cwd' (processes of this host), 'ssh', 'slurm', or a job of monarch.job"
_SHELLS = ("bash", "sh")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


class SPMDJob(JobTrait):
    """Torchrun commands, and the hosts that they run on. See `serve`."""

    not_dumped = frozenset({"_hosts"})
    _roles: list[Role]
    _kind: str  # of the job that has the hosts, and its attributes, as in a record of its own
    _values: dict[str, Any]
    _hosts: JobTrait

    def __init__(
        self, command: Sequence[str] | Sequence[Role], hosts: JobTrait,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Args:
        command: a torchrun command, as `serve` takes it; or the roles of an app, whose commands run
            at once, each on its mesh.
        hosts: a job with the hosts, not applied yet. The command runs on its mesh `workers`, or
            else on its first one.
        env: added to the environment of the ranks.

        Raises:
            ValueError: the command does not begin with torchrun.
            TypeError: the command is no list of text.
        """
        super().__init__()
        roles = [one for one in command if isinstance(one, Role)]
        if not roles:
            words = torchrun_words(cast("Sequence[str]", command))
            roles = [Role("", words, dict(env or {}))]
        self._roles = roles
        self._hosts = hosts
        self._kind = record.kind_of(hosts)
        self._note()

    def run_spmd(self) -> None:
        """Run the command on the hosts, on fresh processes. Returns when all ranks have ended it.

        The commands of several roles run at once, each in a world of its own. If one fails, the
        ranks of the others get SIGTERM, and SIGKILL after the shutdown timeout of their command.

        Reserves the hosts if that was not done yet. Raises as `monarch.spmd.torchrun` does, and
        JobError if hosts could not be reserved, or are gone.
        """
        launches = [_launch(role) for role in self._roles]
        try:
            self._run(launches)
        except SupervisionError as error:
            running = self._running_job()
            error.remedy = running._inner()._cause_of(error.failures) or error.remedy
            raise

    def _run(self, launches: Sequence[Launch]) -> None:
        state = self.state(cached_path=None)
        names = list(state)
        if missing := [role.mesh for role in self._roles if role.mesh and role.mesh not in names]:
            raise JobError(
                f"the job has no mesh {missing[0]!r} for that role; it has {', '.join(names)}: "
                "name a mesh of the job like each role"
            )
        if len(launches) == 1:
            run(launches[0], state[MESH if MESH in names else names[0]])
            return
        meshes = [role.mesh for role in self._roles]
        run_roles([(mesh, one, state[mesh]) for mesh, one in zip(meshes, launches, strict=True)])

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, SPMDJob) and self._inner().can_run(spec._inner())

    def _on_taken_up(self, path: Path) -> None:
        # The record gets the present command: the hosts may have been reserved for another one.
        running = self._running_job()
        running._roles = self._roles
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

    def _wait_for_hosts(self) -> None:
        self._inner()._wait_for_hosts()

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
            with the shape of a TorchX AppDef: roles with `entrypoint`, `args`, `env` and
            `num_replicas`, and `name`s if there are several. Each of several roles has a mesh of
            hosts of its own, by its name, and runs its own torchrun command.
        scheduler: `"local_cwd"`: processes of this host, one for each node; `"ssh"`: the hosts
            that `scheduler_cfg` names; `"slurm"`: a node of Slurm for each node, with the
            `resource` of the roles; or a job of `monarch.job` that is not applied yet.
        scheduler_cfg: the arguments of `SSHJob` for ssh, as in `{"hosts": ["h1", "h2"]}`, for
            several roles `{"hosts": {"trainer": ["h1"], "reader": ["h2"]}}`; those of `SlurmJob`
            but `meshes` for slurm, as in `{"partition": "gpu"}`; `env` for local_cwd.
        cached_path: the path of the record; None: no record, and hosts for this object alone.

    Raises:
        ValueError: no torchrun command, no such scheduler, hosts that do not fit the nodes, or a
            field of a role that has no meaning here (`max_retries`, `mounts`).
        TypeError: an argument of the wrong type.
        ModuleNotFoundError: torch is not installed here.
        JobError: the hosts could not be reserved. OSError: the record cannot be written.
    """
    requests = _requests_of(appdef)
    roles = [Role(one.name, torchrun_words(one.words), one.env) for one in requests]
    nodes = {
        role.mesh or MESH: _launch(role).nodes or one.replicas
        for role, one in zip(roles, requests, strict=True)
    }
    cfg = dict(scheduler_cfg or {})
    if scheduler == "slurm":
        cfg.update(common_resource(requests, cfg))
    job = SPMDJob(roles, _hosts_job(scheduler, cfg, nodes))
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
    words = _checked(command)
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


def _checked(command: Sequence[str]) -> list[str]:
    if isinstance(command, str):
        raise TypeError(f"the command is a list of words, such as {shlex.split(command)!r}")
    words = list(command)
    if not all(isinstance(word, str) for word in words):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the command is a list of text, not {words!r}")
    return words


def _launch(role: Role) -> Launch:
    found = parse_arguments(role.command, prog="torchrun")
    return replace(found, env={**found.env, **role.env})


def _requests_of(appdef: Any) -> list[RoleRequest]:
    """The roles of an AppDef, or the only one that a command is."""
    if isinstance(appdef, str) or not hasattr(appdef, "roles"):
        if isinstance(appdef, (str, list, tuple)):
            return [RoleRequest("", _checked(cast("Sequence[str]", appdef)))]
        raise TypeError(
            f"serve takes a list of words or an AppDef, not {type(appdef).__name__}; an AppDef has "
            "`roles`"
        )
    return requests_of(appdef)


def _hosts_job(scheduler: str | JobTrait, cfg: dict[str, Any], nodes: dict[str, int]) -> JobTrait:
    """A job with as many hosts for each mesh, not applied."""
    if isinstance(scheduler, JobTrait):
        if cfg:
            raise ValueError("scheduler_cfg goes with a scheduler's name; configure the job itself")
        if scheduler.active:
            raise ValueError(f"{scheduler!r} has hosts already; give a job that is not applied")
        return scheduler
    if scheduler in _LOCAL:
        env = cfg.pop("env", None)
        _check_empty(cfg, scheduler, "env")
        return ProcessJob(nodes, env=env)
    if scheduler == "slurm":
        return SlurmJob(nodes, **cfg)
    if scheduler == "ssh":
        return SSHJob(_ssh_hosts(cfg.pop("hosts", None), nodes), **cfg)
    raise ValueError(f"there is no scheduler {scheduler!r} here; give {_SCHEDULERS}")


def _ssh_hosts(hosts: Any, nodes: Mapping[str, int]) -> dict[str, list[Any]]:
    """The hosts of each mesh, as `scheduler_cfg` names them."""
    is_one = list(nodes) == [MESH]
    example = ["h1", "h2"] if is_one else {mesh: ["h1"] for mesh in nodes}
    by_mesh: dict[str, Any] = {MESH: hosts} if is_one else {}
    if isinstance(hosts, Mapping):
        by_mesh = dict(cast("Mapping[str, Any]", hosts))
    found: dict[str, list[Any]] = {}
    for mesh, count in nodes.items():
        given: Any = by_mesh.get(mesh)
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ValueError(f"scheduler 'ssh' needs scheduler_cfg={{'hosts': {example!r}}}")
        found[mesh] = list(cast("Sequence[Any]", given))
        if len(found[mesh]) < count:
            asker = "the command" if mesh == MESH else f"the role {mesh!r}"
            raise ValueError(f"{asker} asks for {count} nodes, and hosts has {len(found[mesh])}")
    return found


def _check_empty(cfg: Mapping[str, Any], scheduler: str, known: str) -> None:
    if cfg:
        names = ", ".join(cfg)
        raise ValueError(f"scheduler_cfg of {scheduler!r} has {names}; it takes {known}")
