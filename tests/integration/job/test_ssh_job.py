"""Hosts that are reached by ssh: what is so of these alone, beside `test_launchers.py`.

The sshd is Debian's; each host is this one, behind a name of its own. Some that are hosts of a
network are in `tests/fault/test_ssh_hosts.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch._src.job.launchers import local_workers
from monarch._src.net import session_directory as sessions
from monarch.actor import Actor, endpoint, shutdown_context
from monarch.job import JobError, SSHHost, SSHJob, job_load
from tests import ssh
from tests.integration.programs import running, watched
from tests.leaks import processes

pytestmark = [pytest.mark.skipif(bool(ssh.why_not()), reason=ssh.why_not()), pytest.mark.slow]
PATH = os.pathsep.join(p for p in sys.path if p)


class Teller(Actor):
    @endpoint
    def where(self) -> str:
        return os.getcwd()


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """ssh, with hosts h1 and h2."""
    return ssh.here(tmp_path / "ssh").ssh


@pytest.fixture
def env() -> dict[str, str]:
    return {**ssh.environment(), "PYTHONPATH": PATH}


def of_jobs() -> list[Path]:
    """What jobs have here: directories of workers, keys."""
    return list(sessions.base_directory().glob(f"**/{local_workers.PREFIX}*"))


@pytest.fixture(autouse=True)
def nothing_of_a_job_is_left() -> Iterator[None]:
    assert of_jobs() == []
    yield
    shutdown_context(reason="the test has ended")
    assert of_jobs() == []


def applied(job: SSHJob, path: Path) -> SSHJob:
    """That job, reserved as if by another program."""
    job.apply()
    job.dump(path)
    found = job_load(path)
    assert isinstance(found, SSHJob)
    return found


def test_keys_are_in_no_argument_no_environment_no_log_and_no_file_of_a_host(
    program: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    job = applied(SSHJob(["h1", "h2"], env=env, ssh=program), tmp_path / "job")
    (own,) = [path for path in of_jobs() if (path / "keys").exists()]
    secrets = {json.loads(file.read_text())["secret"] for file in (own / "keys").glob("*.key")}
    assert len(secrets) == 3
    seen = [repr(job), (tmp_path / "job").read_text()]
    for one in processes():
        seen += [Path(f"/proc/{one.pid}/cmdline").read_text(errors="replace")]
        seen += [Path(f"/proc/{one.pid}/environ").read_text(errors="replace")]
    files = [path for path in sessions.base_directory().rglob("*") if path.is_file()]
    assert any(path.name == "worker.log" for path in files)
    seen += [path.read_text(errors="replace") for path in files if not path.is_relative_to(own)]
    assert [secret for secret in secrets for text in seen if secret in text] == []
    job.kill()


def test_each_host_has_the_directory_and_the_python_that_it_was_given(
    program: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "python").symlink_to(sys.executable)
    other = SSHHost(host="h2", python=str(tmp_path / "python"), cwd=str(tmp_path / "two"))
    job = SSHJob({"trainers": ["h1", other]}, env=env, cwd=str(tmp_path / "one"), ssh=program)
    procs = job.state(None).trainers.spawn_procs({"gpus": 1})
    where = procs.spawn("teller", Teller).where.call().get()
    assert list(where.values()) == [str(tmp_path / "one"), str(tmp_path / "two")]
    job.kill()


def test_user_and_port_are_given_to_ssh_before_the_host() -> None:
    host = SSHHost(host="h1", user="me", port=2200)
    assert host.destination == ["-l", "me", "-p", "2200", "--", "h1"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (SSHHost(host="h3"), r"ssh cannot connect: .* has to work without a prompt"),
        (SSHHost(host="h2", python="none"), r"none cannot be run on h2: .*give python="),
        (SSHHost(host="h2", env={"PYTHONPATH": "HERE"}), r"has no monarch .*pip install monarch-"),
        (SSHHost(host="h2", cwd="/no/such"), r"the working directory does not exist on h2"),
        (
            SSHHost(host="h2", address="tcp://192.0.2.1:0"),
            r"the worker did not start: .*192\.0\.2\.1.* \(on h2\)",
        ),
        (
            SSHHost(host="h2", address="tcp://127.0.0.1:1@tcp://127.0.0.1:0"),
            r"ECONNREFUSED[^~]*by address=",
        ),
    ],
)
def test_a_host_that_cannot_serve_is_named_with_a_remedy_and_nothing_is_left_on_any(
    program: list[str], env: dict[str, str], tmp_path: Path, wrong: SSHHost, why: str
) -> None:
    (tmp_path / "monarch").mkdir()
    (tmp_path / "monarch" / "__init__.py").touch()
    if wrong.env:
        wrong = SSHHost(host=wrong.host, env={"PYTHONPATH": str(tmp_path)})
    before = set(processes())
    job = SSHJob(["h1", wrong], env=env, ssh=program)
    with pytest.raises(JobError, match=why):
        job.state(tmp_path / "job")
    assert not job.active
    assert not (tmp_path / "job").exists()
    assert of_jobs() == []
    assert [one.cmdline() for one in set(processes()) - before if _is_worker(one)] == []


def _is_worker(process: psutil.Process) -> bool:
    return any("programs.worker" in word for word in process.cmdline())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"hosts": {"trainers": "h1"}}, r"hosts of trainers are 'h1': give a list"),
        ({"hosts": None}, "give a list"),
        ({"hosts": [7]}, "7 is no host: give its name, or an SSHHost"),
        ({"hosts": [SSHHost(host="h1", port="22")]}, r"no host: .*int.*port"),  # pyright: ignore[reportArgumentType]
        ({"hosts": ["h1"], "python": None}, r"no host: .*str.*python"),
        ({"hosts": ["h1"], "env": {"A": 1}}, "names and values are text"),
        ({"hosts": ["h1"], "ssh": "ssh -F config"}, r"as in \['ssh', '-F', 'config'\]"),
    ],
)  # fmt: skip
def test_what_is_of_another_type_is_refused_before_anybody_is_asked(
    arguments: Any, why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        SSHJob(**arguments)


def test_all_hosts_that_cannot_serve_are_named(program: list[str], env: dict[str, str]) -> None:
    job = SSHJob(["h3", SSHHost(host="h2", python="no-such-python")], env=env, ssh=program)
    with pytest.raises(JobError) as error:
        job.apply()
    assert "\n- ssh cannot connect: " in str(error.value)
    assert "\n- no-such-python cannot be run on h2: " in str(error.value)


def test_a_program_that_is_killed_while_it_starts_a_job_leaves_no_worker(
    program: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    """One host has begun, and the other one takes its time."""
    told = tmp_path / "told"
    os.mkfifo(told)
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if any('programs.worker' in word for word in sys.orig_argv):\n"
        f"    with open({str(told)!r}, 'w') as file:\n"
        "        file.write(str(os.getpid()))\n"
    )
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec cat > /dev/null\n")
    slow.chmod(0o755)
    tells = {**env, "PYTHONPATH": f"{tmp_path}:{PATH}"}
    source = f"""
        from monarch.job import SSHHost, SSHJob

        hosts = [SSHHost(host="h1", env={tells!r}), SSHHost(host="h2", python={str(slow)!r})]
        SSHJob(hosts, ssh={program!r}).apply()
    """
    with running(tmp_path / "client", source) as client:
        worker = psutil.Process(int(told.read_text()))
        with watched([worker.pid, worker.ppid()]) as both:
            client.process.kill()
            client.end()
            both.wait_all_ended()
    for left in of_jobs():  # who is killed takes nothing away: what is left are keys, and no worker
        assert [path.name for path in left.iterdir()] == ["keys"]
        shutil.rmtree(left)


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ([], "hosts has no host"),
        ("h1", "give a list"),
        (["-oProxyCommand=evil"], "would take it for an option"),
        ({"two words": ["h1"]}, "cannot name"),
        ([SSHHost(host="h1", address="ipc:///tmp/x")], "which no other host can dial"),
    ],
)
def test_what_cannot_be_a_job_is_refused(hosts: list[str | SSHHost], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SSHJob(hosts)


def test_without_an_ssh_it_says_so() -> None:
    with pytest.raises(JobError, match=r"no-such-ssh cannot be run .*install an OpenSSH client"):
        SSHJob(["h1"], ssh=("no-such-ssh",)).apply()


def test_it_runs_no_script() -> None:
    with pytest.raises(JobError, match="run it yourself"):
        SSHJob(["h1"]).apply("train.py")
