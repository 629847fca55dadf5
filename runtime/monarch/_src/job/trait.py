"""JobTrait, the base of all jobs: reserved once, found again by its record, used many times, ended.

Runs in: clients. Owns nothing itself; reserved hosts belong to the subclass.
Invariants: one program at a time reserves hosts for a record, and writes the record before it
returns the hosts; if writing fails, the hosts are released.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from monarch._src.admin.side_process import MeshAdminConfig
from monarch._src.errors import JobError
from monarch._src.failures.report import RankFailure
from monarch._src.job import record
from monarch._src.job.job_state import JobState, Monitoring
from monarch._src.mesh.meshes import HostMesh, another_handle
from monarch._src.session.workers.api import attached_workers, has_workers
from monarch._src.telemetry.history.telemetry_config import TelemetryConfig
from monarch._src.telemetry.perfetto.profile import Profile, profile
from monarch._src.telemetry.sql.query import QueryEngineClient

log = logging.getLogger("monarch.job")
DEFAULT_JOB_PATH = ".monarch/job_state.pkl"
J = TypeVar("J", bound="JobTrait")


class JobTrait(ABC):
    """Hosts that are reserved once, by `apply`, and used by many programs, one after another.

    A subclass implements `_create`, which reserves hosts and starts workers; `_state`, which
    attaches to them; `can_run`, which compares this job with another job's request and checks its
    hosts; and `_kill`, which releases everything. The record of a job holds its attributes, which
    must be builtin values or be annotated in the class; `not_dumped` names attributes that are not
    recorded.
    """

    not_dumped: ClassVar[frozenset[str]] = frozenset()
    _OWN: ClassVar[frozenset[str]] = frozenset(
        {
            "_is_applied",
            "_recorded_job",
            "_apply_id",
            "_applied",
            "_record",
            "_monitoring",
        }
    )

    def __init__(self) -> None:
        self._is_applied = False
        self._recorded_job: JobTrait | None = None  # used in place of this one
        self._apply_id: str | None = None
        self._applied: float | None = None
        self._record: Path | None = None  # where `state` has found or written it
        self._monitoring = Monitoring()

    # --- for subclasses to implement --------------------------------------------------------------

    @abstractmethod
    def _create(self, client_script: str | None) -> None:
        """Reserve the hosts and start a worker on each: all of them, or none if it raises."""

    @abstractmethod
    def _state(self) -> JobState:
        """Attach to the workers. JobError if one is gone."""

    @abstractmethod
    def can_run(self, spec: JobTrait) -> bool:
        """Whether this applied job satisfies the request of `spec`, and its hosts are alive."""

    @abstractmethod
    def _kill(self) -> None:
        """Release everything that `_create` has reserved. Idempotent.

        JobError names the hosts that could not be released; the job keeps its information on them.
        """

    def _wait_for_hosts(self) -> None:
        """Wait until the workers of an applied job listen, if `_create` does not do so."""
        return

    def _is_given_up(self) -> bool:
        """Whether `_state`, or `_wait_for_hosts`, has failed so that the job is to be killed."""
        return False

    def _cause_of(self, _failures: Sequence[RankFailure]) -> str:
        """How the job has ended, if that has caused these failures; empty if it has not ended."""
        return ""

    def _on_taken_up(self, path: Path) -> None:
        """The job of the record at that path is used in place of this one. Called with its lock."""
        log.debug("the hosts of %s are taken up", path)

    def _release(self, mesh: HostMesh) -> None:
        """End the workers of a mesh that this process has, before `_kill`."""
        mesh.shutdown().get()

    def _attached_to(
        self, ca: str | os.PathLike[str], workers: Mapping[str, Sequence[str]]
    ) -> JobState:
        """The hosts of each mesh, attached to by the addresses of their workers. For `_state`.

        Meshes that this process has attached to before stay as they are. If attaching to one of the
        others fails, none of them stays attached.
        """
        before = _states.get(self._apply_id)
        found: dict[str, HostMesh] = {}
        new: list[HostMesh] = []
        try:
            for name, addresses in workers.items():
                mesh = None if before is None or name not in before else before[name]
                if mesh is None or not has_workers(mesh):
                    mesh = attached_workers(name=name, ca=ca, workers=addresses)
                    new.append(mesh)
                found[name] = mesh
        except BaseException:
            for mesh in new:
                mesh.stop().get()
            raise
        return JobState(found)

    def places(self) -> list[tuple[str, str]]:
        """Each host of the job, such as `trainers[0]`, and its place, as text for people."""
        return []

    def condition(self) -> str:
        """One line on the hosts of an applied job, for people."""
        running = self._running or self
        return (
            "all hosts answer"
            if running.can_run(running)
            else ("some hosts are lost or do not answer")
        )

    # --- for programs -----------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether hosts are reserved for it, as far as this object knows."""
        return self._running is not None

    @property
    def apply_id(self) -> str | None:
        """The identifier of the reservation; None if nothing is reserved."""
        running = self._running
        return None if running is None else running._apply_id

    @property
    def applied(self) -> float | None:
        """The time of the reservation, a time of day in seconds."""
        running = self._running
        return None if running is None else running._applied

    @property
    def _running(self) -> JobTrait | None:
        return self if self._is_applied else self._recorded_job

    def _running_job(self: J) -> J:
        """The job that has the hosts: this one, or the job of the record that replaced it."""
        found: Any = self._recorded_job  # of the same class
        return self if found is None else found

    def apply(self, client_script: str | None = None) -> None:
        """Reserve the hosts. Idempotent.

        Args:
            client_script: a program to run as the client, for jobs that support that.

        Raises:
            JobError: the hosts could not be reserved; nothing is reserved then.
        """
        if self._running is not None:
            return
        self._create(client_script)
        self._apply_id, self._applied = uuid.uuid4().hex, time.time()
        self._is_applied = True

    def state(self, cached_path: str | os.PathLike[str] | None = DEFAULT_JOB_PATH) -> JobState:
        """Attach to the hosts: of the job recorded at that path, or else of a new reservation.

        A new reservation is recorded there.

        Args:
            cached_path: the path of the record; None: use no record, and reserve for this object.

        Raises:
            JobError: hosts could not be reserved, or are gone. OSError: the record cannot be
                written; nothing is reserved then.
        """
        if self._running is not None or cached_path is None:
            self.apply()
            return self._attach()
        self.reserve(cached_path)
        return self._attach()

    def reserve(self, cached_path: str | os.PathLike[str] = DEFAULT_JOB_PATH) -> bool:
        """As `state`, without attaching to the hosts; a program that uses them is not disturbed.

        Returns whether hosts were reserved now: False if those of the record are taken up.
        Raises as `state`.
        """
        if self._running is not None:
            return False
        path = Path(cached_path)
        with _locked(path):
            self._recorded_job = self._recorded(path)
            found = self._recorded_job is not None
            if not found:
                self.apply()
                try:
                    self.dump(path)
                except BaseException:
                    self.kill()
                    raise
            else:
                self._on_taken_up(path)
        self._record = path.absolute()
        return not found

    def wait_for_hosts(self) -> None:
        """Wait until the workers of an applied job listen, without attaching to them.

        A job that waits in the queue of a scheduler shows its progress, as in `state`.

        Raises:
            JobError: the job has ended, or will have no hosts; nothing is reserved then.
        """
        running = self._running_job()
        try:
            running._wait_for_hosts()
        except BaseException:  # also an interrupt: a job that is given up keeps no nodes
            if running._is_given_up():
                self.kill()
            raise

    def enable_admin(self: J, config: MeshAdminConfig | None = None, **options: Any) -> J:
        """Have `state` start an admin server of the session, at `JobState.admin_url`.

        The server ends with the session of the program. Call this before `state`.

        Args:
            config: where it listens; None: as `options` say, or at a Unix socket.
            options: the fields of a `MeshAdminConfig`, such as `admin_addr="127.0.0.1:1729"`.

        Raises:
            TypeError: both are given, or there is no such option.
        """
        if config is not None and options:
            raise TypeError("give enable_admin a MeshAdminConfig or its fields, not both")
        self._monitoring.admin = MeshAdminConfig(**options) if config is None else config
        return self

    def enable_telemetry(
        self: J,
        config: TelemetryConfig | None = None,
        *,
        mesh_admin_config: MeshAdminConfig | None = None,
        **options: Any,
    ) -> J:
        """Keep history of calls, messages, spans and log records, for queries; returns the job.

        `state` switches it on in this program and on the job's hosts. Another program that uses the
        job keeps history if it says so itself. It stays on in this program until
        `monarch.observe.record(0)`. Nothing has to be enabled for queries over the live state.

        `JobState` then has `query_engine`, `telemetry_url` and `admin_url`. The server at these
        addresses starts with `state` if an admin server or the dashboard is asked for, and
        otherwise when one of them is read first: a program that only queries needs no server.

        Args:
            config: the history to keep; None: as `TelemetryConfig(**options)`.
            mesh_admin_config: also start an admin server, as `enable_admin` with it.

        Raises:
            TypeError: both are given, or an unknown option. ValueError: as `TelemetryConfig`.
        """
        if config is not None and options:
            raise TypeError(f"give a TelemetryConfig or {', '.join(options)}, not both")
        self._monitoring.telemetry = TelemetryConfig(**options) if config is None else config
        if mesh_admin_config is not None:
            self.enable_admin(mesh_admin_config)
        if self.active and self.apply_id in _states:  # this program has attached already
            self._keep_history()
        return self

    def profile(
        self, *, on_trace_ready: Callable[[Profile], object] | None = None, torch: bool = False
    ) -> Profile:
        """A context manager that records a trace of this program's session for Perfetto.

        Takes arguments of `monarch.observe.profile`.
        """
        return profile(on_trace_ready=on_trace_ready, torch=torch)

    def telemetry_query_client(self) -> QueryEngineClient:
        """Runs SQL over this program's session, with the signature of Monarch's client."""
        return QueryEngineClient()

    def _attach(self) -> JobState:
        running = self._running or self
        try:
            state = _attached(running)
        except BaseException:
            if running._is_given_up():
                self.kill()
            raise
        self._keep_history()
        return state._monitored(self._monitoring)  # pyright: ignore[reportPrivateUsage]

    def _keep_history(self) -> None:
        if self._monitoring.telemetry is not None:
            for missing in self._monitoring.telemetry.apply():
                log.warning("history is not kept yet: %s", missing)

    def kill(self) -> None:
        """Release all hosts; everything that runs there ends. Updates the record. Idempotent.

        Raises:
            JobError: some hosts could not be released, with the reasons; another `kill` retries
                those.
        """
        running = self._running
        if running is not None:
            state = _states.pop(running._apply_id, None)
            meshes = [] if state is None else [state[name] for name in state]
            for mesh in filter(has_workers, meshes):  # so that their end counts as no failure
                running._release(mesh)
            running._kill()
            running._is_applied = False
            self._record_kill(running)
        self._recorded_job = None

    def _record_kill(self, running: JobTrait) -> None:
        """Record that no hosts are reserved, so that the next program does not look for them."""
        path, self._record = self._record, None
        if path is None or not path.exists():
            return
        with _locked(path):
            try:
                if record.read(path).apply_id == running._apply_id:  # not that of a later job
                    running.dump(path)
            except (JobError, OSError) as error:  # the hosts are free all the same
                log.warning("%s still records that the job has hosts: %s", path, error)

    def dump(self, filename: str | os.PathLike[str]) -> None:
        """Write the record of the job (JSON, mode 0600), for `job_load` and `state(filename)`.

        Raises:
            TypeError: an attribute of the job cannot be written. OSError: the file cannot.
        """
        record.write(Path(filename), self._made_record())

    def dumps(self) -> bytes:
        """The record of the job as `dump` writes it, for `job_loads`.

        Raises:
            TypeError: an attribute of the job cannot be written.
        """
        return record.encode(self._made_record())

    def _made_record(self) -> record.JobRecord:
        running = self._running or self
        values = record.values_of(running, self._OWN | running.not_dumped)
        return record.JobRecord(
            record.FORMAT, record.kind_of(running), running._apply_id if self.active else None,
            running._applied if self.active else None, values,
        )  # fmt: skip

    def _recorded(self, path: Path) -> JobTrait | None:
        """The job recorded at that path if it satisfies this request; ends a job that does not."""
        try:
            found = job_load(path)
        except FileNotFoundError:
            return None
        if not found.active:
            return None
        try:
            if type(found) is type(self) and found.can_run(self):
                return found
        except AttributeError as error:
            if error.obj is not found:
                raise
            # The class does not annotate it, so `restored` did not check for it.
            raise record.not_that(type(found), str(path), f"{error.name} is missing") from error
        log.warning(
            "the job at %s (%s) does not satisfy the present request, or has lost hosts: it is "
            "ended, and new hosts are reserved", path, type(found).__name__,
        )  # fmt: skip
        try:
            found.kill()
        except JobError as error:  # a lost host must not prevent a new reservation
            log.warning("%s", error)
        os.unlink(os.path.realpath(path))
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'applied' if self.active else 'not applied'}>"


def job_load(filename: str | os.PathLike[str] = DEFAULT_JOB_PATH) -> JobTrait:
    """The job recorded at that path. Runs no code but that of the job's class.

    Raises:
        FileNotFoundError: there is no such file. JobError: it is not a record of a job, or lacks
            an attribute that the job needs, as a record of another version may.
    """
    path = Path(filename)
    return _job_of(record.read(path), str(path))


def job_loads(data: bytes | str) -> JobTrait:
    """The job in a record that `dumps` has made. Runs no code but that of the job's class.

    Raises:
        JobError: as `job_load`.
    """
    text = data.encode() if isinstance(data, str) else data
    return _job_of(record.decode(text, "the data"), "the data")


def _job_of(found: record.JobRecord, where: str) -> JobTrait:
    kind = record.class_of(found.kind, JobTrait, where)
    job: JobTrait = object.__new__(kind)
    JobTrait.__init__(job)
    leave_out = kind._OWN | kind.not_dumped  # pyright: ignore[reportPrivateUsage]
    vars(job).update(record.restored(kind, found.values, leave_out, where))
    job._is_applied = found.apply_id is not None  # pyright: ignore[reportPrivateUsage]
    job._apply_id, job._applied = found.apply_id, found.applied  # pyright: ignore[reportPrivateUsage]
    return job


_states: dict[str | None, JobState] = {}  # by `apply_id`


def _attached(job: JobTrait) -> JobState:
    """The state of a job. If this process has attached to it before: new handles of the same hosts.

    A cell that is run again makes another object of the same job, and a worker is attached once.
    """
    state = _states.get(job.apply_id)
    if state is None or not all(has_workers(state[name]) for name in state):
        state = _states[job.apply_id] = job._state()  # pyright: ignore[reportPrivateUsage]
        return state
    return JobState({name: another_handle(state[name]) for name in state})


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold a lock, so that two programs that start together reserve once."""
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def check_names(meshes: Mapping[str, Any], what: str) -> None:
    """Check that the names of meshes can be attributes.

    Raises:
        TypeError: not a mapping. ValueError: it is empty, or a name is not a Python identifier, or
            begins with `_`.
    """
    if not isinstance(meshes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the meshes of {what} are {meshes!r}; give a dict, by their names")
    if not meshes:
        raise ValueError(f"{what} has no mesh; name at least one")
    for name in meshes:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"{name!r} cannot name a mesh of {what}; use an identifier, such as trainers"
            )


def checked_env(env: Mapping[str, str] | None) -> dict[str, str]:
    """A checked copy of that environment.

    Raises:
        TypeError: a name or value is not text. ValueError: no environment can hold it.
    """
    if env is not None and not isinstance(env, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"env={env!r}: give a dict of text, as in {{'OMP_NUM_THREADS': '8'}}")
    found = dict(env or {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"env has {name!r}: {value!r}; names and values are text")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env has {name!r}: {value!r}, which no environment can hold")
    return found


__all__ = ["DEFAULT_JOB_PATH", "JobError", "JobState", "JobTrait", "job_load"]
