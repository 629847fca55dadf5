"""A job whose hosts are nodes that Slurm allocates.

Runs in: clients. Owns: a batch job of Slurm, which outlives this process, and the keys made for it,
in a directory of the user's. The batch script hands the worker's key to the nodes.
Invariants: `_create` submits and does not wait, so that the record of the job exists while it is
queued, and a client that restarts takes it up. If the wait of the client that submitted it fails or
is interrupted, the job is cancelled.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from monarch._src.config import settings
from monarch._src.errors import HostUnreachableError, JobError
from monarch._src.failures.report import RankFailure
from monarch._src.job import record
from monarch._src.job.health_check import PART_OF_LIVENESS, silent
from monarch._src.job.launchers.remote import remote_shell
from monarch._src.job.launchers.remote.remote_program import Serve
from monarch._src.job.launchers.slurm import batch_program, commands
from monarch._src.job.launchers.slurm.end_notice import (
    begin_notice,
    end_notice,
    may_be_ended_by_slurm,
    text_of_end,
)
from monarch._src.job.launchers.slurm.problems import log_text, problem_text
from monarch._src.job.launchers.slurm.reaching import reached
from monarch._src.job.launchers.slurm.state import queue, reports
from monarch._src.job.launchers.slurm.state.queue import Phase, QueueEntry
from monarch._src.job.launchers.slurm.state.reports import Worker
from monarch._src.job.launchers.slurm.state.request import (
    Request,
    check,
    sbatch_options,
    script,
    shares,
    srun_command,
)
from monarch._src.job.open_waits import waiting
from monarch._src.job.trait import (
    DEFAULT_JOB_PATH,
    JobState,
    JobTrait,
    check_names,
    checked_env,
    job_load,
)
from monarch._src.mesh.meshes import HostMesh
from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address, parse_dialled, parse_listening
from monarch._src.session.workers.api import attach

LOGS = Path(DEFAULT_JOB_PATH).parent / "logs"
START_S = 300.0  # from the start of a job until its workers listen: interpreters may load slowly
FAST_S, SLOW_S = 0.2, 5.0  # between two questions to Slurm; they grow apart
BATCH = "MONARCH_BATCH_JOB"  # in the environment of a client script: the path of a record
KILLED = "the job was killed; apply it again"


class SlurmJob(JobTrait):
    """A job with a worker on each node that Slurm allocates, all in one allocation.

    A mesh of N nodes has N hosts, or N times `ntasks_per_node`, each a task of Slurm.
    """

    not_dumped = frozenset({"_workers", "_submitted", "_useless"})
    _meshes: dict[str, int]
    _request: Request
    _env: dict[str, str]
    _port: int
    _job_start_timeout: float | None
    _out_of_cluster: bool
    _attach_to: str | None
    _bind_to: str | None
    _slurm_id: str | None
    _keys: str | None
    _workers: Sequence[Worker] = ()
    _submitted: bool = False  # by this object
    _useless: bool = False  # it will have no hosts

    def __init__(
        self,
        meshes: Mapping[str, int],
        python_exe: str = sys.executable,
        slurm_args: Sequence[str] = (),
        monarch_port: int = 0,
        job_name: str = "monarch_job",
        ntasks_per_node: int = 1,
        time_limit: str | None = None,
        partition: str | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        exclusive: bool = True,
        gpus_per_node: int | str | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        job_start_timeout: float | None = None,
        account: str | None = None,
        qos: str | None = None,
        out_of_cluster: bool = False,
        attach_to: str | None = None,
        bind_to: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        meshes: the number of nodes of each mesh, as in `{"trainers": 4}`.
        python_exe: the interpreter that has monarch on the nodes; `~/` is the home directory
            there. Default: the path of the one that runs this.
        slurm_args: more options of sbatch, as in `["--constraint=a100"]`.
        monarch_port: the port of the workers; 0: any free one.
        job_name, time_limit, partition, exclusive, gpus_per_node, cpus_per_task, mem, account, qos:
            as the options of sbatch. `time_limit` is `"HH:MM:SS"`, `mem` is such as `"100G"`.
        ntasks_per_node: workers on each node.
        log_dir: the directory of the log, which must exist on the nodes. Default: `.monarch/logs`
            here.
        job_start_timeout: how long the job may wait in the queue, in seconds; None: forever.
        out_of_cluster: this client can connect to one worker only, which is the gateway to all
            others.
        attach_to: the address by which it connects to that worker. Default: one that it reports.
        bind_to: the address where that worker listens.
        env: added to the environment of the workers, and so of their procs.

        Raises:
            ValueError: there is no mesh, a name is not a Python identifier, a number is below 1, or
                an option is invalid. TypeError: an option is of another type.
        """
        super().__init__()
        check_names(meshes, "a SlurmJob")
        self._meshes = {}
        for name, nodes in meshes.items():
            self._add(name, nodes)
        if isinstance(slurm_args, str):
            raise TypeError(f"slurm_args={slurm_args!r}: give a list, as in [{slurm_args!r}]")
        given = {
            "python": python_exe, "slurm_args": list(slurm_args), "job_name": job_name,
            "ntasks_per_node": ntasks_per_node, "time_limit": time_limit, "partition": partition,
            "log_dir": os.path.abspath(LOGS if log_dir is None else log_dir),
            "exclusive": exclusive, "gpus_per_node": gpus_per_node, "account": account,
            "cpus_per_task": cpus_per_task, "mem": mem, "qos": qos,
        }  # fmt: skip
        try:
            self._request = msgspec.convert(given, Request)
        except msgspec.ValidationError as error:
            raise TypeError(f"an option of this SlurmJob is of the wrong type: {error}") from None
        check(self._request)
        self._env = checked_env(env)
        self._port = monarch_port
        self._job_start_timeout = job_start_timeout
        self._out_of_cluster = out_of_cluster
        self._attach_to, self._bind_to = attach_to, bind_to
        self._check_addresses()
        self._slurm_id = None
        self._keys = None

    def _check_addresses(self) -> None:
        parse_listening(f"tcp://*:{self._port}")
        if not self._out_of_cluster and (self._attach_to or self._bind_to):
            raise ValueError("attach_to and bind_to are for out_of_cluster=True; give that too")
        if self._attach_to is not None:
            parse_dialled(self._attach_to)
        if self._bind_to is not None and parse_listening(self._bind_to).bind.transport != "tcp":
            raise ValueError(f"bind_to={self._bind_to!r}: only tcp:// is reached from other hosts")

    def add_mesh(self, name: str, num_nodes: int) -> None:
        """Add a mesh of that many nodes, before the job is applied.

        Raises:
            ValueError: the job has such a mesh; the name is not an identifier, or the number below
                1. JobError: the job is applied already.
        """
        self._check_not_applied("add_mesh")
        if name in self._meshes:
            raise ValueError(f"the job has a mesh {name} already; give another name")
        check_names({name: num_nodes}, "a SlurmJob")
        self._add(name, num_nodes)

    def share_node(
        self, tasks_per_node: int, gpus_per_task: int, partition: str | None = None
    ) -> None:
        """Share nodes with other jobs: a worker for each task, with its own GPUs.

        Args:
            tasks_per_node: workers on each node; a mesh of N nodes has N times as many hosts.
            gpus_per_task: GPUs of each worker; 0: ask for none.
            partition: a partition whose nodes may be shared; None: that of the job.

        Raises:
            ValueError: a number is too small. JobError: the job is applied already.
        """
        self._check_not_applied("share_node")
        if gpus_per_task < 0:
            raise ValueError(f"gpus_per_task={gpus_per_task}: give 0 or more")
        found = msgspec.structs.replace(
            self._request, exclusive=False, ntasks_per_node=tasks_per_node, gpus_per_node=None,
            gpus_per_task=gpus_per_task or None, partition=partition or self._request.partition,
        )  # fmt: skip
        check(found)
        self._request = found

    def _check_not_applied(self, what: str) -> None:
        if self.active:
            raise JobError(f"{what} comes too late: the job has hosts already; kill() it first")

    def _add(self, name: str, nodes: int) -> None:
        if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{name} has {nodes!r} nodes; a mesh has 1 or more")
        self._meshes[name] = nodes

    # --- its hosts --------------------------------------------------------------------------------

    @property
    def slurm_job_id(self) -> str | None:
        """The number of the job in Slurm; None before it is applied."""
        return self._running_job()._slurm_id

    @property
    def pids(self) -> list[tuple[str, int]]:
        """Its workers, by node and pid there, mesh by mesh; empty until all of them listen."""
        running = self._running_job()
        running._note_workers()
        return [(one.node, one.pid) for one in running._workers]

    @property
    def log_path(self) -> str | None:
        """The path of the log on the nodes; None before it is applied."""
        running = self._running_job()
        number = running._slurm_id
        return None if number is None else running._request.log.replace("%j", number)

    def places(self) -> list[tuple[str, str]]:
        running = self._running_job()
        try:
            running._note_workers()
        except JobError:
            return []
        return [
            (f"{name}[{task - first}]", f"process {one.pid} on {one.node}, port {one.port}")
            for name, first, last in running._shares()
            for task, one in list(enumerate(running._workers))[first:last]
        ]

    def condition(self) -> str:
        entry = self._running_job()._note_workers()
        if entry is None or entry.phase in (Phase.ENDING, Phase.ENDED):
            return queue.ended(str(self.slurm_job_id), entry)
        if not self._running_job()._workers:
            return queue.progress(str(self.slurm_job_id), entry)
        return super().condition()

    def _shares(self) -> list[tuple[str, int, int]]:
        return shares(list(self._meshes.items()), self._request.ntasks_per_node)

    def _note_workers(self) -> QueueEntry | None:
        """Ask Slurm for the state of the job, and note its workers if they have reported."""
        if self._slurm_id is None:
            return None
        entry = commands.entry(self._slurm_id, self._request.job_name)
        if entry is not None and not self._workers:
            try:
                self._workers = reports.workers(entry.comment) or ()
            except ValueError as error:
                raise JobError(f"Slurm job {self._slurm_id}: {error}; kill() the job") from None
        return entry

    def can_run(self, spec: JobTrait) -> bool:
        if not isinstance(spec, SlurmJob) or self._asked() != spec._asked():
            return False
        entry = self._note_workers()
        if entry is None or entry.phase not in (Phase.QUEUED, Phase.RUNNING):
            return False
        return not self._workers or not self._silent()

    def _asked(self) -> tuple[object, ...]:
        return (
            self._meshes, self._request, self._env, self._port, self._out_of_cluster,
            self._attach_to, self._bind_to,
        )  # fmt: skip

    # --- reserving --------------------------------------------------------------------------------

    def _create(self, client_script: str | None) -> None:
        if client_script is not None and not os.path.isfile(client_script):
            raise JobError(f"there is no script {client_script}")
        self._keys = str(record.new_directory() / "keys")
        try:
            keys.make(self._keys)
            os.makedirs(self._request.log_dir, exist_ok=True)
            nodes = sum(self._meshes.values())
            text = self._script(client_script)
            words = sbatch_options(self._request, nodes)
            self._slurm_id = commands.submit(words, text, self._request.job_name)
            if client_script is not None:
                self._write_batch_record()
        except BaseException:
            self._forget_keys()
            raise
        self._workers = ()
        self._submitted, self._useless = True, False

    @property
    def _batch_record(self) -> str:
        """The path of the record that a client script finds the job by."""
        assert self._keys is not None
        return str(Path(self._keys).parent / "record")

    def _write_batch_record(self) -> None:
        values = record.values_of(self, self._OWN | self.not_dumped)
        kind, now = record.kind_of(self), time.time()
        made = record.JobRecord(record.FORMAT, kind, f"slurm-{self._slurm_id}", now, values)
        record.write(Path(self._batch_record), made)

    def _script(self, client_script: str | None) -> bytes:
        assert self._keys is not None
        request = self._request
        own = {name: text.reveal().decode() for name, text in keys.for_a_worker(self._keys).items()}
        anywhere = f"tcp://*:{self._port}"
        asked = Serve([self._bind_to or anywhere, anywhere], own)
        lines = remote_shell.lines("serve", self._env, "")
        tasks = self._shares()[-1][2]
        client = [] if client_script is None else [request.python, os.path.abspath(client_script)]
        order = {
            "srun": srun_command(request, tasks, remote_shell.command(request.python)),
            "input": lines.decode() + msgspec.json.encode(asked).decode() + "\n",
            "ntasks_per_node": request.ntasks_per_node,
            "tasks": tasks,
            "comment": reports.own_comment(request.slurm_args),
            "client": client,
            "record": self._batch_record,
        }
        program = Path(batch_program.__file__).read_text()
        return script(request.python, program, order)

    # --- using ------------------------------------------------------------------------------------

    def state(self, cached_path: str | os.PathLike[str] | None = DEFAULT_JOB_PATH) -> JobState:
        """As `JobTrait.state`. Waits in the queue of Slurm until the nodes are allocated.

        An interrupt cancels the job if this program has submitted it, and leaves one that was taken
        up by its record.

        Raises:
            JobError: as `JobTrait.state`; also: the job was cancelled, preempted or refused, has
                reached a limit, or lost a node. It is cancelled then, and holds no node.
        """
        if self._running is None and cached_path == DEFAULT_JOB_PATH and BATCH in os.environ:
            self._recorded_job = self._batch_job(os.environ[BATCH])
        return super().state(cached_path)

    def _is_given_up(self) -> bool:
        return self._useless

    def _cause_of(self, failures: Sequence[RankFailure]) -> str:
        number = self._slurm_id
        if number is None or not any(may_be_ended_by_slurm(one) for one in failures):
            return ""
        name = self._request.job_name
        end_notice(number)  # the error says it
        if text := text_of_end(number, name):
            return text
        begin_notice(number, name)
        return ""

    def _batch_job(self, path: str) -> SlurmJob:
        """The job that runs this program as its client script."""
        found = job_load(path)
        if not isinstance(found, SlurmJob) or not found.can_run(self):
            raise JobError(
                f"this program is the client script of {found!r}, which has other meshes or "
                "options than it asks for; ask for the same in both"
            )
        return found

    def _state(self) -> JobState:
        if self._keys is None:
            raise JobError(KILLED)
        self._wait_for_hosts()
        shares = self._shares()
        if self._out_of_cluster:
            gateway = self._attach_to or str(self._reached([self._workers[0]])[0])
            attach(gateway, ca=self._keys)
            at = [f"tcp://{one.addresses[0]}" for one in self._workers]
        else:
            at = [str(one) for one in self._reached(self._workers)]
        state = self._attached_to(self._keys, {name: at[i:j] for name, i, j in shares})
        begin_notice(str(self._slurm_id), self._request.job_name)
        return state

    def _wait_for_hosts(self) -> None:
        """Wait until every worker listens.

        Raises:
            JobError: the job has ended, will never run, or takes too long.
        """
        try:
            with waiting(self._shares()[-1][2]) as wait:
                began, running_since = time.monotonic(), 0.0
                pause = FAST_S
                while True:
                    entry = self._note_workers()
                    self._check_progress(entry, began, running_since)
                    if self._workers and entry is not None and entry.phase is Phase.RUNNING:
                        return
                    assert entry is not None
                    wait.update(queue.progress(str(self._slurm_id), entry))
                    if entry.phase is Phase.RUNNING and not running_since:
                        running_since, pause = time.monotonic(), FAST_S
                    time.sleep(pause)
                    pause = min(SLOW_S, pause * 1.1)
        except BaseException:
            self._useless = self._useless or self._submitted
            raise

    def _check_progress(self, entry: QueueEntry | None, began: float, running: float) -> None:
        number = str(self._slurm_id)
        if entry is not None and (why := problem_text(number, entry.comment)):
            self._useless = True
            raise JobError(why)
        if entry is None or entry.phase is Phase.ENDED:
            self._useless = True
            raise JobError(queue.ended(number, entry) + log_text(self.log_path))
        if self._workers:
            return
        if why := queue.hopeless(number, entry):
            raise JobError(why)
        limit = self._job_start_timeout
        if entry.phase is Phase.QUEUED and limit is not None and time.monotonic() - began > limit:
            raise JobError(
                f"{queue.progress(number, entry)}, and job_start_timeout={limit:g} s is over; give "
                "more time, or ask for fewer nodes"
            )
        if running and time.monotonic() - running > START_S:
            raise JobError(
                f"Slurm job {number} runs on {entry.nodes}, and its workers have not reported in "
                f"{START_S:g} s{log_text(self.log_path)}"
            )

    def _reached(self, workers: Sequence[Worker]) -> list[Address]:
        """The address by which this client reaches each of these workers."""
        assert self._keys is not None
        own = keys.load(self._keys, None, Role.OWNER)
        try:
            return reached(workers, own, settings().liveness / PART_OF_LIVENESS)
        except HostUnreachableError as error:
            raise JobError(
                f"{error}\nSlurm says that job {self._slurm_id} runs: if that node has failed, "
                f"`scancel {self._slurm_id}` and apply the job again; if this host is outside the "
                "cluster, give out_of_cluster=True and attach_to="
            ) from None

    def _silent(self) -> dict[int, str]:
        """The workers that do not answer to this job, with the reason."""
        if self._keys is None:
            return {0: KILLED}
        try:
            own = keys.load(self._keys, None, Role.OWNER)
            if self._attach_to is not None:
                at = [parse_dialled(self._attach_to)]
            else:
                at = self._reached(self._workers[:1] if self._out_of_cluster else self._workers)
        except (OSError, ValueError, JobError) as error:
            return {0: str(error)}
        return silent(at, own, settings().liveness / PART_OF_LIVENESS)

    # --- giving back ------------------------------------------------------------------------------

    def _release(self, mesh: HostMesh) -> None:
        if self._out_of_cluster:  # the first worker would cut off the others; scancel ends all
            mesh.stop().get()
        else:
            super()._release(mesh)

    def _kill(self) -> None:
        self._forget_keys()
        if self._slurm_id is not None:
            end_notice(self._slurm_id)
            commands.cancel(self._slurm_id, self._request.job_name)
        self._slurm_id = None
        self._workers = ()

    def _forget_keys(self) -> None:
        made, self._keys = self._keys, None
        if made is not None:
            shutil.rmtree(Path(made).parent, ignore_errors=True)
