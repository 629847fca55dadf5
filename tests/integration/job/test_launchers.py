"""The contract of launchers: what every kind of job does, whatever it gets its hosts from."""

from __future__ import annotations

import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, current_rank, endpoint, shutdown_context
from monarch.job import (
    DEFAULT_JOB_PATH,
    JobState,
    JobTrait,
    LocalJob,
    ProcessJob,
    SlurmJob,
    SSHJob,
    job_load,
)
from monarch.session import SessionError
from tests import slurm, ssh
from tests.integration.programs import run, running, watched
from tests.support.slurm_cluster import running_cluster

__all__ = ["running_cluster"]
pytestmark = pytest.mark.slow

PROGRAM = """
    import json, os, sys
    from monarch.actor import Actor, endpoint
    from monarch.job import LocalJob, ProcessJob, SlurmJob, SSHJob

    class Teller(Actor):
        @endpoint
        def agent(self):
            return os.getppid()

    job = {expression}
    procs = job.state(sys.argv[1]).trainers.spawn_procs({{"gpus": 2}})
    agents = procs.spawn("teller", Teller).agent.call().get()
    print(json.dumps([job.apply_id, sorted(set(agents.values()))]), flush=True)
    if sys.argv[2:]:
        sys.stdin.readline()
"""


class Teller(Actor):
    @endpoint
    def place(self) -> tuple[int, str]:
        return current_rank().rank, os.environ.get("MESH_OF_JOB", "")


class Launcher(ABC):
    """A kind of job, for tests that know none. `hosts`: whether it has some that can be lost."""

    hosts = True

    @abstractmethod
    def expression(self, meshes: Mapping[str, int], env: Mapping[str, str]) -> str:
        """What makes a job with so many hosts for each mesh, as a program says it."""

    @abstractmethod
    def pids(self, job: JobTrait) -> list[int]:
        """The workers of a job of this kind."""

    def job(self, meshes: Mapping[str, int], env: Mapping[str, str] | None = None) -> JobTrait:
        """That job, in this process."""
        kinds = (LocalJob, ProcessJob, SSHJob, SlurmJob)
        names = {kind.__name__: kind for kind in kinds}
        return eval(self.expression(meshes, env or {}), names)


class Local(Launcher):
    hosts = False

    def expression(self, meshes: Mapping[str, int], env: Mapping[str, str]) -> str:
        return f"LocalJob({list(meshes)!r})"

    def pids(self, job: JobTrait) -> list[int]:
        return []


class Processes(Launcher):
    def expression(self, meshes: Mapping[str, int], env: Mapping[str, str]) -> str:
        return f"ProcessJob({dict(meshes)!r}, env={dict(env)!r})"

    def pids(self, job: JobTrait) -> list[int]:
        assert isinstance(job, ProcessJob)
        return job.pids


class Ssh(Launcher):
    def __init__(self, folder: Path) -> None:
        self._program = ssh.here(folder).ssh

    def expression(self, meshes: Mapping[str, int], env: Mapping[str, str]) -> str:
        hosts = {name: ["h1", "h2", "h1"][:count] for name, count in meshes.items()}
        path = os.pathsep.join(p for p in sys.path if p)
        env = {**ssh.environment(), "PYTHONPATH": path, **env}
        return f"SSHJob({hosts!r}, env={env!r}, ssh={self._program!r})"

    def pids(self, job: JobTrait) -> list[int]:
        assert isinstance(job, SSHJob)
        return [pid for _, pid in job.pids]


class Slurm(Launcher):
    def __init__(self, cluster: slurm.Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._logs = str(folder / "logs")

    def expression(self, meshes: Mapping[str, int], env: Mapping[str, str]) -> str:
        env = {**slurm.environment(), **env}
        return f"SlurmJob({dict(meshes)!r}, log_dir={self._logs!r}, env={env!r})"

    def pids(self, job: JobTrait) -> list[int]:
        assert isinstance(job, SlurmJob)
        if job.active:
            self._cluster.wait_for(lambda: bool(job.pids), "workers have not reported")
        return [pid for _, pid in job.pids]


@pytest.fixture(params=["local", "process", "ssh", "slurm"])
def launcher(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Launcher:
    if request.param == "slurm":
        cluster: slurm.Cluster = request.getfixturevalue("running_cluster")
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        return Slurm(cluster, tmp_path)
    if request.param == "ssh":
        if ssh.why_not():
            pytest.skip(ssh.why_not())
        return Ssh(tmp_path / "ssh")
    return Local() if request.param == "local" else Processes()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where a record stands; the job of it is ended."""
    found = tmp_path / "job"
    yield found
    shutdown_context(reason="the test has ended")
    if found.exists():
        job_load(found).kill()


def has_hosts(launcher: Launcher) -> None:
    if not launcher.hosts:
        pytest.skip("this kind reserves nothing, so it has no host to lose")


def ask(launcher: Launcher, folder: Path, path: Path, count: int = 2) -> tuple[list[Any], str]:
    """What the program says of the job, and what it writes to stderr."""
    source = PROGRAM.format(expression=launcher.expression({"trainers": count}, {}))
    status, out, err = run(folder, source, str(path))
    assert status == 0, err
    apply_id, agents = json.loads(out)
    return [apply_id, agents if launcher.hosts else None], err


def reserved(launcher: Launcher, path: Path, count: int = 1) -> list[int]:
    """Reserve in this process, as if by another program; the workers."""
    job = launcher.job({"trainers": count})
    job.apply()
    job.dump(path)
    return launcher.pids(job_load(path))


def ranks(state: JobState, mesh: str) -> list[tuple[int, str]]:
    procs = state[mesh].spawn_procs({"gpus": 1})
    found = list(procs.spawn("teller", Teller).place.call().get().values())
    procs.stop().get()
    return found


def test_each_mesh_that_was_asked_for_runs_actors(launcher: Launcher, path: Path) -> None:
    meshes, env = {"trainers": 1, "loaders": 2}, {"MESH_OF_JOB": "yes"}
    job = launcher.job(meshes, env)
    state = job.state(path)
    assert job.active
    assert list(state) == ["trainers", "loaders"]
    count, said = (2, "yes") if launcher.hosts else (1, "")
    assert ranks(state, "loaders") == [(rank, said) for rank in range(count)]
    again = launcher.job(meshes, env).state(path)  # a cell that is run again
    assert again.trainers == state.trainers or not launcher.hosts
    assert ranks(again, "trainers") == [(0, said)]


def test_the_next_program_finds_the_same_hosts(
    launcher: Launcher, tmp_path: Path, path: Path
) -> None:
    first = ask(launcher, tmp_path, path)
    assert first[1] == ""
    assert ask(launcher, tmp_path, path) == first


def test_a_job_of_a_program_that_was_killed_is_taken_up_by_the_next(
    launcher: Launcher, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "600")  # nobody waits for that: its process has ended
    source = PROGRAM.format(expression=launcher.expression({"trainers": 1}, {}))
    with running(tmp_path, source, str(path), "and wait") as program:
        apply_id, agents = json.loads(program.line())
        program.signal(signal.SIGKILL)
        program.end()
    found, err = ask(launcher, tmp_path, path, count=1)
    assert found == [apply_id, agents if launcher.hosts else None]
    assert err == ""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_hosts_are_reserved_anew_when_one_does_not_answer_any_more(
    launcher: Launcher, tmp_path: Path, path: Path, how: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    has_hosts(launcher)
    monkeypatch.setenv("MONARCH_LIVENESS", "6")
    before = reserved(launcher, path, count=2)
    with watched(before) as workers:
        os.kill(before[1], how)
        _, err = ask(launcher, tmp_path, path)
        workers.wait_all_ended()
    assert "does not satisfy the present request, or has lost hosts" in err
    assert not set(before) & set(launcher.pids(job_load(path)))


def test_hosts_are_reserved_anew_when_something_else_is_asked_for(
    launcher: Launcher, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = reserved(launcher, path)
    first = job_load(path).apply_id
    with watched(before) as workers:
        other = launcher.job({"loaders": 1})
        assert list(other.state(path)) == ["loaders"]
        workers.wait_all_ended()
    assert other.apply_id != first
    assert job_load(path).apply_id == other.apply_id
    assert "does not satisfy the present request" in caplog.text


def test_what_was_killed_is_gone_and_killing_it_again_is_no_error(
    launcher: Launcher, path: Path
) -> None:
    job = launcher.job({"trainers": 2})
    job.state(path)
    with watched(launcher.pids(job_load(path))) as workers:
        job.kill()
        workers.wait_all_ended()
    assert not job.active
    job.kill()
    job.dump(path)
    assert not job_load(path).active


def test_a_record_says_all_that_another_program_needs_and_is_for_its_user_alone(
    launcher: Launcher, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = launcher.job({"trainers": 1})
    assert not job.active
    job.apply()
    job.dump(path)
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = job_load(path)
    assert loaded.apply_id == job.apply_id
    assert ranks(loaded.state(cached_path=None), "trainers")[0][0] == 0
    assert not Path(DEFAULT_JOB_PATH).exists()  # nobody has asked for a record
    loaded.kill()


def test_a_job_that_was_taken_up_tells_its_places_as_the_one_that_reserved(
    launcher: Launcher, path: Path
) -> None:
    before = reserved(launcher, path)
    again = launcher.job({"trainers": 1})
    again.state(path)
    assert launcher.pids(again) == before
    assert again.places() == job_load(path).places()


def test_a_mesh_that_was_given_back_is_had_again_beside_those_that_were_not(
    launcher: Launcher, path: Path
) -> None:
    has_hosts(launcher)
    job = launcher.job({"trainers": 1, "loaders": 1})
    state = job.state(path)
    loader = state.loaders.spawn_procs({"gpus": 1}).spawn("teller", Teller)
    state.trainers.stop().get()
    again = job.state(path)
    assert again.loaders == state.loaders
    assert loader.place.call_one().get()[0] == 0
    assert ranks(again, "trainers")[0][0] == 0


def test_where_a_mesh_is_not_to_be_had_none_of_the_job_is_held(
    launcher: Launcher, tmp_path: Path, path: Path
) -> None:
    has_hosts(launcher)
    job = launcher.job({"trainers": 1, "loaders": 1})
    job.apply()
    job.dump(path)
    source = f"""
        import sys
        from monarch.job import job_load
        state = job_load({str(path)!r}).state(None)
        state.trainers.stop().get()
        print("it has the loaders", flush=True)
        sys.stdin.readline()
    """
    with running(tmp_path, source) as program:
        assert program.line() == "it has the loaders"
        with pytest.raises(SessionError, match=r"program\.py"):
            job.state(path)
        program.say("end")
        assert program.end()[0] == 0
    assert ranks(job.state(path), "trainers")[0][0] == 0


def test_the_record_of_a_job_that_was_killed_says_so(
    launcher: Launcher, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = launcher.job({"trainers": 1})
    job.state(path)
    job.kill()
    assert not job_load(path).active
    launcher.job({"trainers": 1}).state(path)
    assert caplog.text == ""


def test_a_job_that_is_killed_leaves_the_record_of_a_later_one(
    launcher: Launcher, path: Path
) -> None:
    job = launcher.job({"trainers": 1})
    job.state(path)
    later = launcher.job({"trainers": 1})
    later.apply()
    later.dump(path)
    job.kill()
    assert job_load(path).apply_id == later.apply_id
